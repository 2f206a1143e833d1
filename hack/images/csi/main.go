// Command csi builds the images of CSI's sidecars for tests as OCI archives: upstream's programs at the versions in
// hack/csi/go.mod, and the tests' driver. It needs no network once the modules are downloaded. One thing differs
// from upstream: this csi-provisioner cannot watch CSIStorageCapacities of v1beta1, because that part of its newest
// release does not compile with client-go 0.37.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
)

const (
	module      = "hack/csi"
	provisioner = "github.com/kubernetes-csi/external-provisioner/v6"
)

// commands are the sidecars' packages. As upstream, images have the names of the commands.
var commands = []string{
	"github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
	provisioner + "/cmd/csi-provisioner",
	"github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
	"github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter",
}

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder for the archives")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images/csi -out DIR")
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		log.Fatal(err)
	}
	if err := build(*out, "", "./hack/images/csi/driver", "docker.io/coracle/csidriver:latest"); err != nil {
		log.Fatal("driver: ", err)
	}
	modfile, err := prepare()
	if err != nil {
		log.Fatal(err)
	}
	for _, pkg := range commands {
		if err := build(*out, module, pkg, "registry.k8s.io/sig-storage/"+path.Base(pkg)+":latest", "-mod=readonly",
			"-modfile", modfile); err != nil {
			log.Fatal(pkg, ": ", err)
		}
	}
}

// prepare copies and changes the module that differs from upstream, and returns a go.mod that uses the copy. The
// place is fixed, so that the build cache stays valid for unchanged files.
func prepare() (modfile string, err error) {
	dir, err := filepath.Abs("dist/csi")
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	download := exec.Command("go", "mod", "download", "-json", provisioner)
	download.Dir, download.Stderr = module, os.Stderr
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w", provisioner, err)
	}
	var original struct{ Dir string }
	if err := json.Unmarshal(out, &original); err != nil {
		return "", err
	}
	source := filepath.Join(dir, "external-provisioner")
	if err := os.CopyFS(source, os.DirFS(original.Dir)); err != nil {
		return "", err
	}
	main := filepath.Join(source, "cmd/csi-provisioner/csi-provisioner.go")
	data, err := os.ReadFile(main)
	if err != nil {
		return "", err
	}
	const call = "cInformer = " +
		"capacity.NewV1beta1InformerBridge(factoryForNamespace.Storage().V1beta1().CSIStorageCapacities())"
	if n := strings.Count(string(data), call); n != 1 {
		return "", fmt.Errorf("%s contains the call to replace %d times instead of once", main, n)
	}
	text := strings.Replace(string(data), call, `klog.Fatal("this build cannot follow CSIStorageCapacities of v1beta1")`,
		1)
	if err := os.WriteFile(main, []byte(text), 0o644); err != nil {
		return "", err
	}
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return "", err
		}
	}
	modfile = filepath.Join(dir, "go.mod")
	return modfile, exec.Command("go", "mod", "edit", "-replace", provisioner+"="+source, modfile).Run()
}

// build writes the image of a program: a package of the module in folder dir, compiled with more flags for go build.
func build(out, dir, pkg, image string, flags ...string) error {
	program, err := archive.Compile(dir, runtime.GOARCH, pkg, flags...)
	if err != nil {
		return err
	}
	name := path.Base(pkg)
	files := []archive.File{{Name: name, Mode: 0o755, Data: program}, {Name: "tmp/", Mode: 0o1777}}
	config := v1.Config{Entrypoint: []string{"/" + name}}
	return archive.Write(filepath.Join(out, name+".tar"),
		archive.Image{Arch: runtime.GOARCH, Config: config, Files: files}, image)
}
