// Command images builds the container images that Coracle needs offline, as OCI archives: busybox, from Debian's
// package busybox-static and the Go package tools, and hello and worker from the Go packages below this folder. With
// -examples it builds guestbook and etcd. For another architecture it downloads busybox with apt-get, which needs "dpkg
// --add-architecture". Builds are reproducible.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder for the archives")
	arch := flag.String("arch", runtime.GOARCH, "architecture of the images: amd64 or arm64")
	busybox := flag.String("busybox", "", "the static busybox (default: the one of package busybox-static)")
	hello := flag.String("hello", "./hack/images/hello", "Go package of the hello server")
	worker := flag.String("worker", "./hack/images/worker", "Go package of the built-in functions of workers")
	examples := flag.Bool("examples", false, "build the images that only example applications need, and no others")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images [-examples] [-arch ARCH] -out DIR")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	if *examples {
		for _, name := range []string{"guestbook", "etcd"} {
			if err := buildExample(filepath.Join(*out, name+".tar"), *arch, name); err != nil {
				log.Fatal(name, ": ", err)
			}
		}
		return
	}
	if err := buildBusybox(filepath.Join(*out, "busybox.tar"), *arch, *busybox); err != nil {
		log.Fatal("busybox: ", err)
	}
	if err := buildHello(filepath.Join(*out, "hello.tar"), *arch, *hello); err != nil {
		log.Fatal("hello: ", err)
	}
	if err := buildWorker(filepath.Join(*out, "worker.tar"), *arch, *worker); err != nil {
		log.Fatal("worker: ", err)
	}
}

// installed returns the path of busybox below a root directory.
func installed(root string) (string, error) {
	for _, path := range []string{"usr/bin/busybox", "bin/busybox"} {
		if _, err := os.Stat(filepath.Join(root, path)); err == nil {
			return filepath.Join(root, path), nil
		}
	}
	return "", errors.New("no busybox on this machine: apt-get install busybox-static")
}

// download returns the busybox of this machine's release of Debian for another architecture.
func download(arch string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "coracle-busybox-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	get := exec.Command("sh", "-c", `apt-get download -q "busybox-static:$1" && dpkg-deb -x *.deb root`, "sh", arch)
	get.Dir = dir
	if text, err := get.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("busybox-static:%s: %w: %s: hack/deps.sh cross adds the architecture", arch, err, text)
	}
	path, err := installed(filepath.Join(dir, "root"))
	if err != nil {
		return nil, err
	}
	return os.ReadFile(path)
}

func buildBusybox(out, arch, binary string) error {
	native, err := installed("/")
	if binary == "" && err != nil {
		return err
	}
	if binary != "" {
		native = binary
	}
	program, err := os.ReadFile(native)
	if err == nil && binary == "" && arch != runtime.GOARCH {
		program, err = download(arch)
	}
	if err != nil {
		return err
	}
	list, err := exec.Command(native, "--list").Output() // one release's busybox has the same applets everywhere
	if err != nil {
		return err
	}
	tools, err := archive.Compile("", arch, "./hack/images/tools")
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
	return archive.Write(out, archive.Image{Arch: arch, Config: config, Files: files},
		"docker.io/library/busybox:latest", "docker.io/library/busybox:1.36")
}

func buildHello(out, arch, pkg string) error {
	program, err := archive.Compile("", arch, pkg)
	if err != nil {
		return err
	}
	files := []archive.File{
		{Name: "hello", Mode: 0o755, Data: program}, {Name: "etc/hello/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777},
	}
	config := v1.Config{Entrypoint: []string{"/hello"}, User: "65534", ExposedPorts: map[string]struct{}{"8080/tcp": {}}}
	return archive.Write(out, archive.Image{Arch: arch, Config: config, Files: files}, "docker.io/coracle/hello:latest")
}

func buildWorker(out, arch, pkg string) error {
	program, err := archive.Compile("", arch, pkg)
	if err != nil {
		return err
	}
	config := v1.Config{Entrypoint: []string{"/worker"}, User: "65534"}
	files := []archive.File{{Name: "worker", Mode: 0o755, Data: program}, {Name: "tmp/", Mode: 0o1777}}
	return archive.Write(out, archive.Image{Arch: arch, Config: config, Files: files}, "docker.io/coracle/worker:latest")
}

// buildExample builds the image of an example application. Its only program has the image's name.
func buildExample(out, arch, name string) error {
	program, err := archive.Compile("", arch, "./hack/images/"+name)
	if err != nil {
		return err
	}
	config := v1.Config{Entrypoint: []string{"/" + name}, User: "65534"}
	files := []archive.File{
		{Name: name, Mode: 0o755, Data: program}, {Name: "data/", Mode: 0o755}, {Name: "tmp/", Mode: 0o1777},
	}
	return archive.Write(out, archive.Image{Arch: arch, Config: config, Files: files},
		"docker.io/coracle/"+name+":latest")
}
