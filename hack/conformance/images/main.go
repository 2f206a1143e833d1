// Command images builds replacements for the container images of upstream's conformance suite offline, as one
// docker archive: agnhost (with Debian's curl and dig), sample-apiserver and etcd from their sources, and small
// servers where the suite only needs a response on a port.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"k8s.io/kubernetes/test/utils/image"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "the archive to write")
	flag.Parse()
	if *out == "" {
		log.Fatal("usage: go run ./images -out FILE")
	}
	if err := build(*out); err != nil {
		log.Fatal(err)
	}
}

const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func build(out string) error {
	dir, err := os.MkdirTemp("", "conformance-images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := compile(dir); err != nil {
		return err
	}
	base, err := system(dir)
	if err != nil {
		return err
	}
	tools := map[string]content{
		"agnhost":   {file: filepath.Join(dir, "agnhost"), mode: 0o755},
		"agnhost-2": {link: "agnhost"},
		"uploads/":  {mode: 0o777},
		"bin/bash":  {link: "/usr/bin/bash"},
	}
	if err := addCertificate(tools); err != nil {
		return err
	}
	for _, program := range []string{
		"/usr/bin/bash", "/usr/bin/curl", "/usr/bin/dig", "/usr/bin/nslookup", "/usr/bin/getent",
	} {
		if err := addDynamic(tools, program); err != nil {
			return err
		}
	}
	server := func(greeting string) (map[string]content, v1.Config) {
		return map[string]content{"web": {file: filepath.Join(dir, "web"), mode: 0o755}},
			v1.Config{Entrypoint: []string{"/web"}, Cmd: []string{greeting}}
	}
	pets := func(pet string) (map[string]content, v1.Config) {
		files := map[string]content{
			"data.json": {text: `{"image":"` + pet + `.jpg"}`, mode: 0o644}, pet + ".jpg": {text: pet, mode: 0o644},
		}
		for k, v := range tools {
			files[k] = v
		}
		return files, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}
	}
	images := map[name.Tag]v1.Image{}
	pause := v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}
	shell := v1.Config{Cmd: []string{"sh"}}
	nnp := map[string]content{"usr/local/bin/nnp": {file: filepath.Join(dir, "nnp"), mode: 0o4755}}
	sample := map[string]content{"kube-sample-apiserver": {file: filepath.Join(dir, "kube-sample-apiserver"), mode: 0o755}}
	etcd := map[string]content{"usr/local/bin/etcd": {file: filepath.Join(dir, "etcd"), mode: 0o755}}
	kitten, kittenConfig := pets("kitten")
	nautilus, nautilusConfig := pets("nautilus")
	nginx, nginxConfig := server("Welcome to nginx!")
	nonRoot := pause
	nonRoot.User = "1234"
	for _, i := range []struct {
		id     image.ImageID
		files  map[string]content
		config v1.Config
	}{
		{image.Agnhost, tools, pause}, {image.AgnhostPrev, tools, pause}, {image.Pause, tools, pause},
		{image.BusyBox, map[string]content{"etc/busybox-shell": {text: "see ./sh\n", mode: 0o644}}, shell},
		{image.IpcUtils, nil, shell}, {image.GlibcDnsTesting, tools, shell},
		{image.Kitten, kitten, kittenConfig}, {image.Nautilus, nautilus, nautilusConfig},
		{image.Nginx, nginx, nginxConfig}, {image.NginxNew, nginx, nginxConfig},
		{image.Nonewprivs, nnp, v1.Config{Cmd: []string{"/usr/local/bin/nnp"}}}, {image.NonRoot, tools, nonRoot},
		{image.APIServer, sample, v1.Config{Entrypoint: []string{"/kube-sample-apiserver"}}},
		{image.Etcd, etcd, v1.Config{Cmd: []string{"/usr/local/bin/etcd"}}},
	} {
		tag, err := name.NewTag(image.GetE2EImage(i.id))
		if err != nil {
			return err
		}
		if images[tag], err = made(base, i.files, i.config); err != nil {
			return err
		}
	}
	return tarball.MultiWriteToFile(out, images)
}

func compile(dir string) error {
	for binary, pkg := range map[string]string{
		"agnhost": "k8s.io/kubernetes/test/images/agnhost", "kube-sample-apiserver": "k8s.io/sample-apiserver",
		"etcd": "go.etcd.io/etcd/server/v3",
		"web":  "./images/web", "sh": "./images/sh", "nnp": "./images/nnp", "tools": "./hack/images/tools",
	} {
		command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o",
			filepath.Join(dir, binary), pkg)
		command.Env = append(os.Environ(), "CGO_ENABLED=0")
		if binary == "tools" { // it is in Coracle's module
			command.Dir = "../.."
		}
		if text, err := command.CombinedOutput(); err != nil {
			return &os.PathError{Op: "build " + string(text), Path: pkg, Err: err}
		}
	}
	return nil
}

// made returns an image of the base layer and a layer with files.
func made(base v1.Layer, files map[string]content, config v1.Config) (v1.Image, error) {
	top, err := layer(files)
	if err != nil {
		return nil, err
	}
	config.Env = []string{path}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: runtime.GOARCH,
		Config:       config,
		RootFS:       v1.RootFS{Type: "layers"},
	})
	if err != nil {
		return nil, err
	}
	return mutate.AppendLayers(img, base, top)
}

// system returns the base layer: busybox's applets, programs that differ from those, users, and folders. dir has
// our programs.
func system(dir string) (v1.Layer, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	applets, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	files := map[string]content{
		"bin/sh":      {file: filepath.Join(dir, "sh"), mode: 0o755},
		"bin/tools":   {file: filepath.Join(dir, "tools"), mode: 0o755},
		"bin/busybox": {file: busybox, mode: 0o755},
		"etc/passwd": {
			text: "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n" +
				"nobody:x:65534:65534:nobody:/:/bin/false\n", mode: 0o644,
		},
		"etc/nsswitch.conf": {text: "hosts: files dns\n", mode: 0o644},                 // for getent
		"etc/os-release":    {text: "NAME=\"Alpine Linux\"\nID=alpine\n", mode: 0o644}, // as upstream's images have
		"etc/group": {
			text: "root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n" +
				"nobody:x:65534:\n", mode: 0o644,
		},
		"tmp/": {mode: 0o1777}, "root/": {mode: 0o700}, "home/": {mode: 0o755}, "var/": {mode: 0o755},
		"usr/bin/env": {link: "/bin/busybox"},
	}
	// busybox's losetup lists nothing without arguments, and its nsenter runs busybox's shell and losetup.
	for _, program := range []string{"/usr/bin/dash", "/usr/sbin/losetup", "/usr/bin/nsenter"} {
		if err := addDynamic(files, program); err != nil {
			return nil, err
		}
	}
	ours := []string{"busybox", "sh", "nslookup", "losetup", "nsenter"}
	for _, name := range []string{"wget", "nc", "printenv"} {
		files["bin/"+name] = content{link: "tools"}
		ours = append(ours, name)
	}
	for applet := range strings.FieldsSeq(string(applets)) {
		if !slices.Contains(ours, applet) {
			files["bin/"+applet] = content{link: "busybox"}
		}
	}
	return layer(files)
}

// addCertificate adds the TLS certificate of agnhost's porter, from its source.
func addCertificate(files map[string]content) error {
	folder, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/test/images/agnhost/porter").Output()
	if err != nil {
		return err
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		files[name] = content{file: filepath.Join(strings.TrimSpace(string(folder)), name), mode: 0o644}
	}
	return nil
}

// addDynamic adds a program of this machine with its shared libraries.
func addDynamic(files map[string]content, program string) error {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		return &os.PathError{Op: "ldd: " + string(out), Path: program, Err: err}
	}
	paths := []string{program}
	for word := range strings.FieldsSeq(string(out)) {
		if strings.HasPrefix(word, "/") {
			paths = append(paths, word)
		}
	}
	for _, p := range paths {
		real, err := filepath.EvalSymlinks(p)
		if err != nil {
			return err
		}
		files[strings.TrimPrefix(p, "/")] = content{file: real, mode: 0o755}
	}
	return nil
}

// content is a file (of this machine, or a text), a link, or a folder if its name ends in a slash.
type content struct {
	file, text, link string
	mode             int64
}

func layer(files map[string]content) (v1.Layer, error) {
	var buffer bytes.Buffer
	w := tar.NewWriter(&buffer)
	for name, c := range files {
		h := &tar.Header{Name: name, Mode: c.mode, Typeflag: tar.TypeReg}
		data := []byte(c.text)
		switch {
		case strings.HasSuffix(name, "/"):
			h.Typeflag = tar.TypeDir
		case c.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, c.link
		case c.file != "":
			var err error
			if data, err = os.ReadFile(c.file); err != nil {
				return nil, err
			}
		}
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(data))
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(data); err != nil {
				return nil, err
			}
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buffer.Bytes())), nil
	})
}
