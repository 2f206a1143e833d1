// Command coracle builds the image of Coracle itself, as an OCI archive: for a cluster in a privileged container, and
// for operators on another Kubernetes.
package main

import (
	"log"
	"os"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
	"github.com/coracle-dev/coracle/pkg/base/version"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: go run ./hack/images/coracle BINARY ARCHIVE [NAME]")
	}
	name := "docker.io/library/coracle:" + version.Coracle
	if len(os.Args) > 3 {
		name = os.Args[3]
	}
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	files := []archive.File{
		{Name: "bin/", Mode: 0o755}, {Name: "bin/coracle", Mode: 0o755, Data: data}, {Name: "tmp/", Mode: 0o1777},
	}
	config := v1.Config{
		Entrypoint: []string{"/bin/coracle"}, Cmd: []string{"server"},
		// The ranges differ from the defaults, which the cluster outside may have.
		Env:     []string{"HOME=/root", "CORACLE_CLUSTER_CIDR=10.142.0.0/16", "CORACLE_SERVICE_CIDR=10.143.0.0/16"},
		Volumes: map[string]struct{}{"/var/lib/coracle": {}}, // containers need a disk that is not an overlay
	}
	if err := archive.Write(os.Args[2], config, files, name); err != nil {
		log.Fatal(err)
	}
}
