// What Terraform's provider does, by the client that it uses: everything is made, read and removed.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"

	rabbithole "github.com/michaelklishin/rabbit-hole/v3"
)

func main() {
	client := must(rabbithole.NewClient(os.Args[1], "guest", "guest"))
	const vhost = "terra/form"
	done(client.PutVhost(vhost, rabbithole.VhostSettings{Description: "made here", Tags: rabbithole.VhostTags{"a", "b"}}))
	shown := must(client.GetVhost(vhost))
	equal(shown.Description, "made here", "description")
	equal(fmt.Sprint(shown.Tags), "[a b]", "tags of the vhost")

	done(client.PutUser("ann", rabbithole.UserSettings{Password: "secret", Tags: rabbithole.UserTags{"management"}}))
	equal(must(client.GetUser("ann")).Tags[0], "management", "tag of the user")
	done(client.UpdatePermissionsIn(vhost, "ann", rabbithole.Permissions{Configure: "^a", Write: ".*", Read: ""}))
	equal(must(client.GetPermissionsIn(vhost, "ann")).Configure, "^a", "permission")
	done(client.UpdateTopicPermissionsIn(vhost, "ann", rabbithole.TopicPermissions{Exchange: "amq.topic", Write: "w", Read: "r"}))
	equal(must(client.GetTopicPermissionsIn(vhost, "ann"))[0].Write, "w", "topic permission")
	done(client.PutUserLimits("ann", rabbithole.UserLimitsValues{"max-connections": 3}))
	equal(must(client.GetUserLimits("ann"))[0].Value["max-connections"], 3, "limit of the user")
	done(client.PutVhostLimits(vhost, rabbithole.VhostLimitsValues{"max-queues": 5}))
	equal(must(client.GetVhostLimits(vhost))[0].Value["max-queues"], 5, "limit of the vhost")

	done(client.DeclareExchange(vhost, "logs", rabbithole.ExchangeSettings{Type: "topic", Durable: true}))
	equal(must(client.GetExchange(vhost, "logs")).Type, "topic", "type of the exchange")
	done(client.DeclareQueue(vhost, "orders", rabbithole.QueueSettings{Type: "quorum", Durable: true}))
	done(client.DeclareBinding(vhost, rabbithole.BindingInfo{
		Source: "logs", Destination: "orders", DestinationType: "queue", RoutingKey: "a.#",
		Arguments: map[string]interface{}{"x": "y"},
	}))
	bindings := must(client.ListQueueBindingsBetween(vhost, "logs", "orders"))
	equal(len(bindings), 1, "bindings")
	equal(bindings[0].RoutingKey, "a.#", "key of the binding")
	policy := rabbithole.Policy{Pattern: "^o", ApplyTo: "queues", Priority: 1, Definition: rabbithole.PolicyDefinition{"max-length": 9}}
	done(client.PutPolicy(vhost, "short", policy))
	equal(must(client.GetPolicy(vhost, "short")).Definition["max-length"], 9.0, "policy")
	done(client.PutOperatorPolicy(vhost, "cap", rabbithole.OperatorPolicy{
		Pattern: "^o", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"max-length": 7},
	}))
	queue := must(client.GetQueue(vhost, "orders"))
	equal(queue.Type, "quorum", "type of the queue")
	equal(queue.Policy, "short", "policy of the queue")

	refused("ha-mode", func() error {
		_, err := client.PutPolicy(vhost, "ha", rabbithole.Policy{Pattern: ".*", ApplyTo: "queues", Definition: rabbithole.PolicyDefinition{"ha-mode": "all"}})
		return err
	})
	refused("src-queue", func() error {
		_, err := client.DeclareShovel(vhost, "s", rabbithole.ShovelDefinition{SourceURI: rabbithole.URISet{"amqp://"}, DestinationURI: rabbithole.URISet{"amqp://"}})
		return err
	})
	done(client.DeclareShovel(vhost, "s", rabbithole.ShovelDefinition{
		SourceURI: rabbithole.URISet{"amqp://"}, SourceQueue: "nothing", DestinationURI: rabbithole.URISet{"amqp://"}, DestinationQueue: "orders",
	}))
	equal(len(must(client.ListShovelsIn(vhost))), 1, "shovels")
	done(client.DeleteShovel(vhost, "s"))
	refused("uri", func() error {
		_, err := client.PutFederationUpstream(vhost, "f", rabbithole.FederationDefinition{Uri: rabbithole.URISet{"http://"}})
		return err
	})
	upstream := rabbithole.FederationDefinition{Uri: rabbithole.URISet{"amqp://127.0.0.1:1"}, MaxHops: 2, AckMode: "on-confirm"}
	done(client.PutFederationUpstream(vhost, "f", upstream))
	equal(must(client.GetFederationUpstream(vhost, "f")).Definition.MaxHops, 2, "hops of the upstream")
	equal(len(must(client.ListFederationUpstreamsIn(vhost))), 1, "upstreams")
	must(client.ListFederationLinksIn(vhost))
	done(client.DeleteFederationUpstream(vhost, "f"))

	published := must(client.PublishToExchange(vhost, "logs", rabbithole.PublishOptions{
		RoutingKey: "a.b", Payload: "hello", PayloadEncoding: "string", Properties: map[string]interface{}{"delivery_mode": 2},
	}))
	equal(published.Routed, true, "routed")

	overview := must(client.Overview())
	equal(overview.RabbitMQVersion, overview.ManagementVersion, "one version")
	equal(len(overview.Contexts) >= 3, true, "contexts")
	equal(len(must(client.ListNodes())), 3, "nodes")
	alarms := must(client.HealthCheckAlarms())
	equal(alarms.Ok(), true, "no alarms")
	hosts := must(client.HealthCheckVirtualHosts())
	equal(hosts.Ok(), true, "virtual hosts")
	must(client.ListConnections())
	must(client.ListChannels())
	must(client.ListConsumers())
	must(client.ListFeatureFlags())
	equal(must(client.Whoami()).Name, "guest", "whoami")

	exported := must(client.ListVhostDefinitions(vhost))
	done(client.UploadVhostDefinitions(exported, vhost))
	whole := must(client.ListDefinitions())
	whole.Permissions, whole.TopicPermissions = nil, nil // which this client takes without their users
	done(client.UploadDefinitions(whole))

	done(client.EnableVhostDeletionProtection(vhost))
	refused("protected", func() error { _, err := client.DeleteVhost(vhost); return err })
	done(client.DisableVhostDeletionProtection(vhost))
	done(client.DeleteBinding(vhost, bindings[0]))
	done(client.PurgeQueue(vhost, "orders"))
	done(client.DeleteQueue(vhost, "orders"))
	done(client.DeleteExchange(vhost, "logs"))
	done(client.DeletePolicy(vhost, "short"))
	done(client.DeleteOperatorPolicy(vhost, "cap"))
	done(client.ClearTopicPermissionsIn(vhost, "ann"))
	done(client.ClearPermissionsIn(vhost, "ann"))
	done(client.DeleteUserLimits("ann", rabbithole.UserLimits{"max-connections"}))
	done(client.DeleteVhostLimits(vhost, rabbithole.VhostLimits{"max-queues"}))
	done(client.DeleteUser("ann"))
	done(client.DeleteVhost(vhost))
	_, err := client.GetVhost(vhost)
	equal(err != nil && strings.Contains(err.Error(), "404"), true, "gone")
	fmt.Println("all done")
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func done(response *http.Response, err error) {
	if err != nil {
		panic(err)
	}
	if response.StatusCode >= 300 {
		panic(response.Status)
	}
}

func refused(reason string, act func() error) {
	err := act()
	if err == nil || !strings.Contains(err.Error(), reason) {
		panic(fmt.Sprintf("not refused because of %q: %v", reason, err))
	}
}

func equal(found, wanted any, what string) {
	if fmt.Sprint(found) != fmt.Sprint(wanted) {
		panic(fmt.Sprintf("%s: %v instead of %v", what, found, wanted))
	}
}
