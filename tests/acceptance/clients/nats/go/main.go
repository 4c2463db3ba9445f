// nats.go. Each step is done as it is, and again while the node that leads the stream is killed.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
)

const (
	// What a request, or an attempt at one, may take.
	timeout     = 2 * time.Second
	ackWait     = 10 * time.Second
	objectBytes = 4 << 20
)

var (
	ctx   = context.Background()
	steps = map[string]func() string{"connect": connect}
)

func init() {
	for name, step := range map[string]func(kill bool) string{
		"publish": publish, "pull": pull, "push": push, "ordered": ordered,
		"kv": kv, "objects": objects, "services": services,
	} {
		steps[name] = func() string { return step(false) }
		steps[name+"+kill"] = func() string { return step(true) }
	}
}

// connected is to the first that answers; then to any other when that one dies.
func connected(urls []string) *nats.Conn {
	return must(nats.Connect(strings.Join(urls, ","), nats.DontRandomize(), nats.MaxReconnects(-1),
		nats.ReconnectWait(100*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})))
}

func jetStream(client *nats.Conn) jetstream.JetStream {
	return must(jetstream.New(client, jetstream.WithDefaultTimeout(timeout)))
}

// scene is a stream, a client at the node that leads it, and one at another node.
type scene struct {
	stream    string
	near, far *nats.Conn
	kill      bool
}

// on does work with a stream: `stream` makes it, and something of that name in it.
func on(what string, kill bool, make func(js jetstream.JetStream, name string) string, work func(it scene) string) string {
	name := strings.ReplaceAll(name(what), ".", "-")
	if kill {
		name += "-kill"
	}
	first := connected(given.Urls)
	stream := make(jetStream(first), name)
	first.Close()
	urls := []string{}
	for _, url := range ask("leader", stream)["urls"].([]any) {
		urls = append(urls, url.(string))
	}
	near, far := connected(urls), connected(append(slices.Clone(urls[1:]), urls[0]))
	defer near.Close()
	defer far.Close()
	detail := work(scene{stream, near, far, kill})
	check(jetStream(far).DeleteStream(ctx, stream))
	return detail
}

func plain(js jetstream.JetStream, name string) string {
	must(js.CreateStream(ctx, jetstream.StreamConfig{Name: name, Subjects: []string{name}, Replicas: 3}))
	return name
}

// load is what was done: numbers from 0 on. Leaders die when `before` of it is, and `after` more are done then.
type load struct {
	count         int
	before, after int
	wait          time.Duration
}

func usual() load { return load{before: beforeKill, after: afterKill} }

func (l *load) String() string {
	return fmt.Sprintf("%d acknowledged, the longest wait %.2f s", l.count, l.wait.Seconds())
}

// throughout attempts each number, again until it succeeds.
func (it scene) throughout(l load, attempt func(number int) error) load {
	deadline, last := time.Now().Add(reconnectMax), time.Now()
	dead := make(chan struct{})
	if !it.kill {
		close(dead)
	}
	for l.after > 0 {
		if err := attempt(l.count); err != nil {
			if !it.kill || time.Now().After(deadline) {
				panic(err)
			}
			time.Sleep(20 * time.Millisecond)
			continue
		}
		l.count++
		l.wait, last = max(l.wait, time.Since(last)), time.Now()
		select {
		case <-dead:
			l.after--
		default:
			if l.count == l.before {
				go func() { ask("kill", it.stream); close(dead) }()
			}
		}
	}
	return l
}

// publish stores numbers, each once however often it was tried.
func (it scene) publish() load {
	js := jetStream(it.near)
	return it.throughout(usual(), func(number int) error {
		ack, err := js.Publish(ctx, it.stream, body(number), jetstream.WithMsgID(fmt.Sprint(number)))
		if err == nil {
			equal(ack.Sequence, uint64(number+1), "sequence")
		}
		return err
	})
}

func body(number int) []byte { return []byte(fmt.Sprint(number)) }

func numbered(data []byte) int { return must(strconv.Atoi(string(data))) }

func until(done func() bool, what string) {
	for deadline := time.Now().Add(reconnectMax); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			panic(what + ": not in time")
		}
	}
}

func refused(err, wanted error, what string) {
	if !errors.Is(err, wanted) {
		panic(fmt.Sprintf("%s: %v instead of %v", what, err, wanted))
	}
}

func connect() string {
	client := connected(given.Urls[:1])
	defer client.Close()
	until(func() bool {
		known := map[string]bool{}
		for _, url := range client.Servers() {
			known[url[strings.LastIndexAny(url, "@/")+1:]] = true
		}
		return len(known) == len(given.Urls)
	}, "all addresses")
	check(client.Flush())
	_, err := nats.Connect(strings.Replace(given.Urls[0], "guest:guest", "guest:wrong", 1))
	refused(err, nats.ErrAuthorization, "a wrong password")
	return fmt.Sprintf("a node says %s; a wrong password: %v", client.ConnectedServerVersion(), err)
}

func publish(kill bool) string {
	return on("publish", kill, plain, func(it scene) string {
		done, js := it.publish(), jetStream(it.far)
		stream := must(js.Stream(ctx, it.stream))
		for number := range done.count {
			equal(string(must(stream.GetMsg(ctx, uint64(number+1))).Data), fmt.Sprint(number), "message")
		}
		again := must(js.Publish(ctx, it.stream, nil, jetstream.WithMsgID("7")))
		equal([]any{again.Sequence, again.Duplicate}, []any{uint64(8), true}, "the same id again")
		_, err := js.Publish(ctx, it.stream, nil, jetstream.WithExpectLastSequence(7))
		var wrong *jetstream.APIError
		equal(errors.As(err, &wrong), true, "a wrong sequence is refused")
		equal(wrong.ErrorCode, jetstream.JSErrCodeStreamWrongLastSequence, "code")
		equal(must(stream.Info(ctx)).State.Msgs, uint64(done.count), "messages")
		waiting := make([]jetstream.PubAckFuture, 500)
		for n := range waiting {
			waiting[n] = must(js.PublishAsync(it.stream, body(n)))
		}
		for n, future := range waiting {
			select {
			case ack := <-future.Ok():
				equal(ack.Sequence, uint64(done.count+n+1), "sequence")
			case err := <-future.Err():
				panic(err)
			}
		}
		return done.String()
	})
}

// settled is what a consumer got and acknowledged for sure. Nothing of it may come again.
type settled struct {
	sync.Mutex
	inTime map[int]bool
	twice  int
	wrong  string
}

func (s *settled) take(message jetstream.Msg) {
	number, came := numbered(message.Data()), time.Now()
	s.Lock()
	if inTime, known := s.inTime[number]; known {
		s.twice++
		if inTime {
			s.wrong = fmt.Sprintf("%d came again though it was acknowledged in time", number)
		}
	}
	s.Unlock()
	for time.Since(came) < ackWait {
		within, cancel := context.WithTimeout(ctx, timeout)
		err := message.DoubleAck(within)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
			s.Lock()
			s.inTime[number] = time.Since(came) < ackWait/2
			s.Unlock()
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *settled) count() int {
	s.Lock()
	defer s.Unlock()
	if s.wrong != "" {
		panic(s.wrong)
	}
	return len(s.inTime)
}

// finished when all came and is acknowledged.
func (s *settled) finished(done load, info func(context.Context) (*jetstream.ConsumerInfo, error)) string {
	until(func() bool { return s.count() >= done.count }, "all that is acknowledged")
	about := must(info(ctx))
	found := []any{about.AckFloor.Stream, about.NumAckPending, about.NumPending}
	equal(found, []any{uint64(done.count), 0, uint64(0)}, "acknowledged up to, and what is open")
	return fmt.Sprintf("%v, %d twice", &done, s.twice)
}

func pull(kill bool) string {
	return on("pull", kill, plain, func(it scene) string {
		s := &settled{inTime: map[int]bool{}}
		config := jetstream.ConsumerConfig{Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait}
		consumer := must(jetStream(it.far).CreateOrUpdateConsumer(ctx, it.stream, config))
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
				}
				batch, err := consumer.Fetch(10, jetstream.FetchMaxWait(timeout))
				if err != nil {
					time.Sleep(20 * time.Millisecond)
					continue
				}
				for message := range batch.Messages() {
					about := must(message.Metadata())
					if about.Sequence.Stream == 4 && about.NumDelivered == 1 {
						check(message.Nak())
					} else {
						s.take(message)
					}
				}
			}
		}()
		defer func() { close(stop); <-stopped }()
		return s.finished(it.publish(), consumer.Info)
	})
}

func push(kill bool) string {
	return on("push", kill, plain, func(it scene) string {
		s := &settled{inTime: map[int]bool{}}
		consumer := must(jetStream(it.far).CreatePushConsumer(ctx, it.stream, jetstream.ConsumerConfig{
			Durable: "reader", AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait,
			DeliverSubject: nats.NewInbox(), IdleHeartbeat: time.Second, FlowControl: true,
		}))
		consuming := must(consumer.Consume(s.take))
		defer consuming.Stop()
		return s.finished(it.publish(), consumer.Info)
	})
}

func ordered(kill bool) string {
	return on("ordered", kill, plain, func(it scene) string {
		came := &numbers{}
		consumer := must(jetStream(it.far).OrderedConsumer(ctx, it.stream, jetstream.OrderedConsumerConfig{}))
		consuming := must(consumer.Consume(func(message jetstream.Msg) {
			came.add(numbered(message.Data()))
		}, jetstream.PullHeartbeat(time.Second), jetstream.PullExpiry(5*time.Second)))
		defer consuming.Stop()
		done := it.publish()
		until(func() bool { return len(came.all()) >= done.count }, "all that is acknowledged")
		for n, number := range came.all() {
			equal(number, n, "in order")
		}
		equal(len(came.all()), done.count, "how many came")
		return done.String()
	})
}

// numbers are what came, in order.
type numbers struct {
	sync.Mutex
	seen []int
}

func (n *numbers) add(number int) {
	n.Lock()
	defer n.Unlock()
	n.seen = append(n.seen, number)
}

func (n *numbers) all() []int {
	n.Lock()
	defer n.Unlock()
	return slices.Clone(n.seen)
}

func kv(kill bool) string {
	bucket := func(js jetstream.JetStream, name string) string {
		must(js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: name, History: 5, Replicas: 3}))
		return "KV_" + name
	}
	return on("kv", kill, bucket, func(it scene) string {
		name := strings.TrimPrefix(it.stream, "KV_")
		near, far := must(jetStream(it.near).KeyValue(ctx, name)), must(jetStream(it.far).KeyValue(ctx, name))
		for _, value := range []string{"1", "2", "3"} {
			must(near.PutString(ctx, "a.b", value))
		}
		history := ""
		for _, entry := range must(far.History(ctx, "a.b")) {
			history += string(entry.Value())
		}
		equal(history, "123", "history")
		equal(string(must(far.GetRevision(ctx, "a.b", 2)).Value()), "2", "an earlier revision")
		_, err := far.Create(ctx, "a.b", []byte("4"))
		refused(err, jetstream.ErrKeyExists, "create of what is there")
		_, err = far.Update(ctx, "a.b", []byte("4"), 2)
		refused(err, jetstream.ErrKeyExists, "update of an old revision")
		revision := must(far.Update(ctx, "a.b", []byte("4"), 3))
		must(near.PutString(ctx, "gone", ""))
		check(near.Delete(ctx, "gone"))
		equal(must(far.Keys(ctx)), []string{"a.b"}, "keys")
		_, err = far.Get(ctx, "gone")
		refused(err, jetstream.ErrKeyNotFound, "get of what was deleted")

		watcher := must(far.Watch(ctx, "count"))
		defer func() { _ = watcher.Stop() }()
		watched, last := &numbers{}, must(near.Create(ctx, "count", []byte("-1")))
		go func() {
			for entry := range watcher.Updates() {
				if entry != nil {
					watched.add(numbered(entry.Value()))
				}
			}
		}()
		done := it.throughout(usual(), func(number int) error {
			revision, err := near.Update(ctx, "count", body(number), last)
			if err == nil {
				last = revision
				return nil
			}
			// What became of an attempt without an answer, the bucket knows.
			found, lost := near.Get(ctx, "count")
			if lost != nil {
				return lost
			}
			last = found.Revision()
			value := numbered(found.Value())
			equal(value == number || value == number-1, true, fmt.Sprintf("%d where %d was to be set", value, number))
			if value == number {
				return nil
			}
			return err
		})
		until(func() bool { all := watched.all(); return len(all) > 0 && all[len(all)-1] == done.count-1 }, "the last one, watched")
		for n, number := range watched.all()[1:] {
			equal(number > watched.all()[n], true, "watched in order")
		}
		equal(numbered(must(far.Get(ctx, "count")).Value()), done.count-1, "the last one")
		entry := must(far.Get(ctx, "a.b"))
		equal([]any{string(entry.Value()), entry.Revision()}, []any{"4", revision}, "what was there before")
		return done.String()
	})
}

func objects(kill bool) string {
	bucket := func(js jetstream.JetStream, name string) string {
		must(js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: name, Replicas: 3}))
		return "OBJ_" + name
	}
	return on("objects", kill, bucket, func(it scene) string {
		name := strings.TrimPrefix(it.stream, "OBJ_")
		near, far := must(jetStream(it.near).ObjectStore(ctx, name)), must(jetStream(it.far).ObjectStore(ctx, name))
		done := it.throughout(load{before: 2, after: 2}, func(number int) error {
			_, err := near.PutBytes(ctx, fmt.Sprint(number), content(number))
			return err
		})
		names := map[string]bool{}
		for _, info := range must(far.List(ctx)) {
			names[info.Name] = true
		}
		for number := range done.count {
			found := must(far.GetBytes(ctx, fmt.Sprint(number)))
			equal(bytes.Equal(found, content(number)), true, fmt.Sprintf("object %d is the same", number))
			equal(names[fmt.Sprint(number)], true, fmt.Sprintf("object %d is listed", number))
		}
		check(far.Delete(ctx, "0"))
		_, err := near.GetBytes(ctx, "0")
		refused(err, jetstream.ErrObjectNotFound, "get of what was deleted")
		return fmt.Sprintf("%v, %d MiB each", &done, objectBytes>>20)
	})
}

func content(number int) []byte {
	all := make([]byte, 0, objectBytes)
	for block := range objectBytes / sha256.Size {
		sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d", number, block))
		all = append(all, sum[:]...)
	}
	return all
}

func services(kill bool) string {
	return on("services", kill, plain, func(it scene) string {
		service := must(micro.AddService(it.near, micro.Config{Name: "upper", Version: "1.2.3"}))
		check(service.AddEndpoint("upper", micro.HandlerFunc(func(request micro.Request) {
			_ = request.Respond(bytes.ToUpper(request.Data()))
		}), micro.WithEndpointSubject(it.stream+".upper")))
		id := service.Info().ID
		until(func() bool { _, err := it.far.Request("$SRV.PING.upper."+id, nil, timeout); return err == nil }, "a ping")
		done := it.throughout(usual(), func(number int) error {
			answer, err := it.far.Request(it.stream+".upper", fmt.Appendf(nil, "ask %d", number), timeout)
			if err == nil {
				equal(string(answer.Data), fmt.Sprintf("ASK %d", number), "answer")
			}
			return err
		})
		about := micro.Stats{}
		for _, verb := range []string{"PING", "INFO", "STATS"} {
			for _, subject := range []string{"$SRV." + verb, "$SRV." + verb + ".upper", "$SRV." + verb + ".upper." + id} {
				check(json.Unmarshal(must(it.far.Request(subject, nil, timeout)).Data, &about))
				equal([]string{about.Name, about.Version, about.ID}, []string{"upper", "1.2.3", id}, subject)
			}
		}
		count := about.Endpoints[0].NumRequests
		equal(count >= done.count, true, fmt.Sprintf("%d requests are counted", count))
		check(service.Stop())
		return done.String()
	})
}
