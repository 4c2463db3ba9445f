// The control plane of Kubernetes without a machine below it: what the API server and its controllers do with a release.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	if len(os.Args) > 1 {
		which := os.Args[1]
		os.Args = append(os.Args[:1], os.Args[2:]...)
		switch which {
		case "apiserver":
			os.Exit(cli.Run(apiserver.NewAPIServerCommand()))
		case "controller-manager":
			os.Exit(cli.Run(manager.NewControllerManagerCommand()))
		}
	}
	fmt.Fprintln(os.Stderr, "usage: control apiserver|controller-manager FLAGS")
	os.Exit(2)
}
