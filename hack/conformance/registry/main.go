// Command registry serves the images of an archive as a registry on one address, for tests that always pull. With
// -forward it forwards connections to another registry, from another network namespace.
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "address")
	images := flag.String("images", "", "archive of images; those with the address's port in their names are served")
	blobs := flag.String("blobs", "", "directory for their layers")
	forward := flag.String("forward", "", "address of the registry to pass connections on to")
	flag.Parse()
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	if *forward != "" {
		log.Fatal(pass(l, *forward))
	}
	log.Fatal(serve(l, *images, *blobs))
}

// serve serves the images, and prints a line once all are stored.
func serve(l net.Listener, images, blobs string) error {
	if err := os.MkdirAll(blobs, 0o700); err != nil {
		return err
	}
	handler := registry.New(registry.WithBlobHandler(registry.NewDiskBlobHandler(blobs)),
		registry.Logger(log.New(io.Discard, "", 0)))
	ended := make(chan error, 1)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { ended <- server.Serve(l) }()
	open := func() (io.ReadCloser, error) { return os.Open(images) }
	_, own, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	manifest, err := tarball.LoadManifest(open)
	if err != nil {
		return err
	}
	for _, d := range manifest {
		for _, text := range d.RepoTags {
			tag, err := name.NewTag(text, name.Insecure)
			if err != nil {
				return err
			}
			if _, port, _ := net.SplitHostPort(tag.RegistryStr()); port != own {
				continue // only nodes load this image
			}
			image, err := tarball.Image(open, &tag)
			if err != nil {
				return err
			}
			if err := remote.Write(tag, image); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
	}
	fmt.Println("ready")
	return <-ended
}

func pass(l net.Listener, address string) error {
	for {
		from, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", address)
			if err != nil {
				return
			}
			defer to.Close()
			go func() {
				_, _ = io.Copy(to, from)
				_ = to.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(from, to)
		}()
	}
}
