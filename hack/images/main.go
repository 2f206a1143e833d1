// Command images builds the container images that Coracle needs offline, as OCI archives: busybox, from Debian's
// package busybox-static and the Go package tools, and hello and worker from the Go packages below this folder. With
// -examples it builds guestbook and etcd. Builds are reproducible.
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder for the archives")
	busybox := flag.String("busybox", "", "the static busybox (default: the one of package busybox-static)")
	hello := flag.String("hello", "./hack/images/hello", "Go package of the hello server")
	worker := flag.String("worker", "./hack/images/worker", "Go package of the built-in functions of workers")
	examples := flag.Bool("examples", false, "build the images that only example applications need, and no others")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images [-examples] -out DIR")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	if *examples {
		for _, name := range []string{"guestbook", "etcd"} {
			if err := buildExample(filepath.Join(*out, name+".tar"), name); err != nil {
				log.Fatal(name, ": ", err)
			}
		}
		return
	}
	if err := buildBusybox(filepath.Join(*out, "busybox.tar"), *busybox); err != nil {
		log.Fatal("busybox: ", err)
	}
	if err := buildHello(filepath.Join(*out, "hello.tar"), *hello); err != nil {
		log.Fatal("hello: ", err)
	}
	if err := buildWorker(filepath.Join(*out, "worker.tar"), *worker); err != nil {
		log.Fatal("worker: ", err)
	}
}

func buildBusybox(out, binary string) error {
	for _, path := range []string{"/usr/bin/busybox", "/bin/busybox"} {
		if _, err := os.Stat(path); err == nil && binary == "" {
			binary = path
		}
	}
	if binary == "" {
		return fmt.Errorf("no busybox on this machine: apt-get install busybox-static")
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	list, err := exec.Command(binary, "--list").Output()
	if err != nil {
		return err
	}
	tools, err := archive.Compile("", "./hack/images/tools")
	if err != nil {
		return err
	}
	files := []archive.File{
		{Name: "bin/busybox", Mode: 0o755, Data: program}, {Name: "bin/tools", Mode: 0o755, Data: tools},
		{
			Name: "etc/passwd",
			Mode: 0o644,
			Data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"),
		},
		{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nnobody:x:65534:\n")},
		{Name: "home/", Mode: 0o755}, {Name: "root/", Mode: 0o700}, {Name: "tmp/", Mode: 0o1777}, {Name: "var/", Mode: 0o755},
		{Name: "usr/bin/env", Link: "/bin/busybox"},
	}
	ours := []string{"wget", "nc", "printenv"}
	for _, name := range ours {
		files = append(files, archive.File{Name: "bin/" + name, Link: "tools"})
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" && !slices.Contains(ours, applet) {
			files = append(files, archive.File{Name: "bin/" + applet, Link: "busybox"})
		}
	}
	config := v1.Config{
		Cmd: []string{"sh"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	}
	return archive.Write(out, config, files, "docker.io/library/busybox:latest", "docker.io/library/busybox:1.36")
}

func buildHello(out, pkg string) error {
	program, err := archive.Compile("", pkg)
	if err != nil {
		return err
	}
	files := []archive.File{
		{Name: "hello", Mode: 0o755, Data: program}, {Name: "etc/hello/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777},
	}
	config := v1.Config{Entrypoint: []string{"/hello"}, User: "65534", ExposedPorts: map[string]struct{}{"8080/tcp": {}}}
	return archive.Write(out, config, files, "docker.io/coracle/hello:latest")
}

func buildWorker(out, pkg string) error {
	program, err := archive.Compile("", pkg)
	if err != nil {
		return err
	}
	config := v1.Config{Entrypoint: []string{"/worker"}, User: "65534"}
	return archive.Write(out, config,
		[]archive.File{{Name: "worker", Mode: 0o755, Data: program}, {Name: "tmp/", Mode: 0o1777}},
		"docker.io/coracle/worker:latest")
}

// buildExample builds the image of an example application. Its only program has the image's name.
func buildExample(out, name string) error {
	program, err := archive.Compile("", "./hack/images/"+name)
	if err != nil {
		return err
	}
	config := v1.Config{Entrypoint: []string{"/" + name}, User: "65534"}
	return archive.Write(out, config,
		[]archive.File{{Name: name, Mode: 0o755, Data: program}, {Name: "data/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777}},
		"docker.io/coracle/"+name+":latest")
}
