// Command coracle builds the image of Coracle itself, as an OCI archive: for a cluster in a privileged container, and
// for operators on another Kubernetes. It is an index with an image for each binary's architecture.
package main

import (
	"debug/elf"
	"flag"
	"fmt"
	"log"
	"os"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
	"github.com/coracle-dev/coracle/pkg/base/version"
)

func main() {
	log.SetFlags(0)
	name := flag.String("name", "docker.io/library/coracle:"+version.Coracle, "name of the image")
	flag.Parse()
	if flag.NArg() < 2 {
		log.Fatal("usage: go run ./hack/images/coracle [-name NAME] ARCHIVE BINARY...")
	}
	var images []archive.Image
	for _, binary := range flag.Args()[1:] {
		i, err := image(binary)
		if err != nil {
			log.Fatal(binary, ": ", err)
		}
		images = append(images, i)
	}
	if err := archive.WriteIndex(flag.Arg(0), images, *name); err != nil {
		log.Fatal(err)
	}
}

func image(binary string) (archive.Image, error) {
	f, err := elf.Open(binary)
	if err != nil {
		return archive.Image{}, err
	}
	defer f.Close()
	arch, known := map[elf.Machine]string{elf.EM_X86_64: "amd64", elf.EM_AARCH64: "arm64"}[f.Machine]
	if !known {
		return archive.Image{}, fmt.Errorf("a program for %s", f.Machine)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return archive.Image{}, err
	}
	return archive.Image{
		Arch: arch,
		Files: []archive.File{
			{Name: "bin/", Mode: 0o755}, {Name: "bin/coracle", Mode: 0o755, Data: data}, {Name: "tmp/", Mode: 0o1777},
		},
		Config: v1.Config{
			Entrypoint: []string{"/bin/coracle"}, Cmd: []string{"server"},
			// The ranges differ from the defaults, which the cluster outside may have.
			Env:     []string{"HOME=/root", "CORACLE_CLUSTER_CIDR=10.142.0.0/16", "CORACLE_SERVICE_CIDR=10.143.0.0/16"},
			Volumes: map[string]struct{}{"/var/lib/coracle": {}}, // containers need a disk that is not an overlay
		},
	}, nil
}
