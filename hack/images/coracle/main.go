// Command coracle builds the image of Coracle itself, for its operators on another Kubernetes, as an OCI archive.
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
	if len(os.Args) != 3 {
		log.Fatal("usage: go run ./hack/images/coracle BINARY ARCHIVE")
	}
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	files := []archive.File{{Name: "coracle", Mode: 0o755, Data: data}, {Name: "tmp/", Mode: 0o1777}}
	config := v1.Config{Entrypoint: []string{"/coracle"}, User: "65532"}
	if err := archive.Write(os.Args[2], config, files, "docker.io/library/coracle:"+version.Coracle); err != nil {
		log.Fatal(err)
	}
}
