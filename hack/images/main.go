// Command images builds the container images that Coracle needs offline, as OCI archives: busybox, from the static
// busybox of the Debian package busybox-static, hello, from ./hack/images/hello, and worker, from ./hack/images/worker. Builds are
// reproducible.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// when is the timestamp of everything in an image.
var when = time.Unix(0, 0).UTC()

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder for the archives")
	busybox := flag.String("busybox", "", "the static busybox (default: the one of package busybox-static)")
	hello := flag.String("hello", "./hack/images/hello", "Go package of the hello server")
	worker := flag.String("worker", "./hack/images/worker", "Go package of the built-in functions of workers")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images -out DIR")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
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
	files := []file{
		{name: "bin/busybox", mode: 0o755, data: program},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n")},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnobody:x:65534:\n")},
		{name: "home/", mode: 0o755}, {name: "root/", mode: 0o700}, {name: "tmp/", mode: 0o1777}, {name: "var/", mode: 0o755},
		{name: "usr/bin/env", link: "/bin/busybox"},
	}
	for applet := range strings.FieldsSeq(string(list)) {
		if applet != "busybox" {
			files = append(files, file{name: "bin/" + applet, link: "busybox"})
		}
	}
	config := v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	return write(out, config, files, "docker.io/library/busybox:latest", "docker.io/library/busybox:1.36")
}

func buildHello(out, pkg string) error {
	program, err := compile(pkg)
	if err != nil {
		return err
	}
	files := []file{{name: "hello", mode: 0o755, data: program}, {name: "etc/hello/", mode: 0o755}, {name: "tmp/", mode: 0o1777}}
	config := v1.Config{Entrypoint: []string{"/hello"}, User: "65534", ExposedPorts: map[string]struct{}{"8080/tcp": {}}}
	return write(out, config, files, "docker.io/coracle/hello:latest")
}

func buildWorker(out, pkg string) error {
	program, err := compile(pkg)
	if err != nil {
		return err
	}
	config := v1.Config{Entrypoint: []string{"/worker"}, User: "65534"}
	return write(out, config, []file{{name: "worker", mode: 0o755, data: program}, {name: "tmp/", mode: 0o1777}}, "docker.io/coracle/worker:latest")
}

// compile returns the static program of a Go package.
func compile(pkg string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "coracle-image-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "program")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid=", "-o", binary, pkg)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return os.ReadFile(binary)
}

// file is one entry of an image: a folder if its name ends in a slash, else a link or a file.
type file struct {
	name, link string
	mode       int64
	data       []byte
}

// layer returns a tar of the files and their folders.
func layer(files []file) ([]byte, error) {
	have := map[string]bool{}
	for _, f := range files {
		have[f.name] = true
	}
	for _, f := range files {
		for dir := path.Dir(strings.TrimSuffix(f.name, "/")); dir != "."; dir = path.Dir(dir) {
			if !have[dir+"/"] {
				have[dir+"/"] = true
				files = append(files, file{name: dir + "/", mode: 0o755})
			}
		}
	}
	slices.SortFunc(files, func(a, b file) int { return strings.Compare(a.name, b.name) })
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, ModTime: when, Size: int64(len(f.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if f.link != "" {
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		} else if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return buf.Bytes(), w.Close()
}

// write writes an archive of an image with one layer. The layer is not compressed, because it is loaded from the same
// disk, which is faster without.
func write(out string, config v1.Config, files []file, names ...string) error {
	data, err := layer(files)
	if err != nil {
		return err
	}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(base, static.NewLayer(data, types.OCIUncompressedLayer))
	if err != nil {
		return err
	}
	whole, err := image.ConfigFile()
	if err != nil {
		return err
	}
	whole.Architecture, whole.OS, whole.Config, whole.Created = runtime.GOARCH, "linux", config, v1.Time{Time: when}
	if image, err = mutate.ConfigFile(image, whole); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "coracle-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := index.AppendImage(image, layout.WithAnnotations(map[string]string{
			"io.containerd.image.name":          name,
			"org.opencontainers.image.ref.name": name[strings.LastIndexByte(name, ':')+1:],
		}))
		if err != nil {
			return err
		}
	}
	archive, err := pack(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(out+".new", archive, 0o644); err != nil {
		return err
	}
	if err := os.Rename(out+".new", out); err != nil {
		return err
	}
	fmt.Printf("%s: %s, %d KB\n", out, strings.Join(names, ", "), len(archive)>>10)
	return nil
}

// pack returns a tar of a folder, sorted by name.
func pack(dir string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Name: rel + "/", Mode: 0o755, ModTime: when, Typeflag: tar.TypeDir})
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: rel, Mode: 0o644, ModTime: when, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return buf.Bytes(), w.Close()
}
