// Command buildbarn builds the images of Buildbarn for tests as OCI archives: upstream's programs at the versions
// in hack/buildbarn/go.mod. It needs no network once the modules are downloaded. It differs from upstream, which
// builds with Bazel, in two places: the worker has no FUSE mounts, because these need a patched go-fuse, and a call
// in bb_storage has the type that the newest bytestream needs.
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
	"regexp"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/hack/images/archive"
)

const (
	module    = "hack/buildbarn"
	storage   = "github.com/buildbarn/bb-storage"
	execution = "github.com/buildbarn/bb-remote-execution"
)

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "folder for the archives")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images/buildbarn -out DIR")
	}
	if err := build(*out); err != nil {
		log.Fatal(err)
	}
}

func build(out string) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	b, err := prepare()
	if err != nil {
		return err
	}
	runner, err := b.program(execution + "/cmd/bb_runner")
	if err != nil {
		return err
	}
	// The installer embeds the runner. Upstream's build puts the runner beside the installer's source.
	if err := os.WriteFile(filepath.Join(b.source(execution), "cmd/bb_runner_installer/bb_runner"), runner, 0o755); err !=
		nil {
		return err
	}
	for _, p := range []struct{ ref, module, command string }{
		{buildbarn.ImageInstaller, execution, "bb_runner_installer"},
		{buildbarn.ImageWorker, execution, "bb_worker"},
		{buildbarn.ImageScheduler, execution, "bb_scheduler"},
		{buildbarn.ImageStorage, storage, "bb_storage"},
	} {
		data, err := b.program(p.module + "/cmd/" + p.command)
		if err != nil {
			return err
		}
		if err := image(out, p.ref, p.module, p.command, data); err != nil {
			return err
		}
	}
	return nil
}

// builder has modifiable copies of the modules and a go.mod that uses them.
type builder struct{ dir string }

func (b *builder) modfile() string             { return filepath.Join(b.dir, "go.mod") }
func (b *builder) source(module string) string { return filepath.Join(b.dir, path.Base(module)) }

// prepare copies the modules into a fixed place, so that the build cache stays valid for unchanged files.
func prepare() (*builder, error) {
	dir, err := filepath.Abs("dist/buildbarn")
	if err != nil {
		return nil, err
	}
	b := &builder{dir}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	replace := []string{"mod", "edit"}
	for _, m := range []string{storage, execution} {
		upstream, err := find(m)
		if err != nil {
			return nil, err
		}
		if err := os.CopyFS(b.source(m), os.DirFS(upstream.Dir)); err != nil {
			return nil, err
		}
		replace = append(replace, "-replace", m+"="+b.source(m))
	}
	for from, to := range map[string]string{"go.mod": b.modfile(), "go.sum": filepath.Join(dir, "go.sum")} {
		data, err := os.ReadFile(filepath.Join(module, from))
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, data, 0o644); err != nil {
			return nil, err
		}
	}
	if err := os.WriteFile(filepath.Join(b.source(execution),
		"pkg/filesystem/virtual/configuration/fuse_mount_enabled.go"), []byte(noFUSE), 0o644); err != nil {
		return nil, err
	}
	if err := edit(filepath.Join(b.source(storage), "cmd/bb_storage/main.go"),
		"bytestream.RegisterByteStreamServer(\n\t\t\t\t\t\ts,",
		"bytestream.RegisterByteStreamServer(\n\t\t\t\t\t\ts.(*grpc.Server),"); err != nil {
		return nil, err
	}
	_, err = command("go", append(replace, b.modfile())...)
	return b, err
}

// edit replaces a text that must occur exactly once in a file.
func edit(file, old, new string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if n := strings.Count(string(data), old); n != 1 {
		return fmt.Errorf("%s contains the text to replace %d times instead of once", file, n)
	}
	return os.WriteFile(file, []byte(strings.Replace(string(data), old, new, 1)), 0o644)
}

func (b *builder) program(pkg string) ([]byte, error) {
	data, err := archive.Compile(module, runtime.GOARCH, pkg, "-mod=readonly", "-modfile", b.modfile())
	if err != nil {
		return nil, fmt.Errorf("building %s: %w", pkg, err)
	}
	return data, nil
}

func command(name string, args ...string) ([]byte, error) {
	c := exec.Command(name, args...)
	c.Dir, c.Stderr = module, os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s in %s: %w", name, strings.Join(args, " "), module, err)
	}
	return out, nil
}

// image writes an image of a program with upstream's name and tag, and with the name ref.
func image(out, ref, from, binary string, program []byte) error {
	name, _, _ := strings.Cut(path.Base(ref), ":")
	m, err := find(from)
	if err != nil {
		return err
	}
	tag, err := tag(m.Version)
	if err != nil {
		return err
	}
	files := []archive.File{{Name: binary, Mode: 0o755, Data: program}, {Name: "tmp/", Mode: 0o1777}}
	config := v1.Config{Entrypoint: []string{"/" + binary}}
	// The second name is the default of Coracle's kinds, so that manifests find the image without a registry.
	return archive.Write(filepath.Join(out, name+".tar"),
		archive.Image{Arch: runtime.GOARCH, Config: config, Files: files}, "ghcr.io/buildbarn/"+name+":"+tag, ref)
}

type pinned struct{ Version, Dir string }

// find returns the version of a module in go.mod and its folder. It downloads the module if necessary.
func find(module string) (pinned, error) {
	text, err := command("go", "mod", "download", "-json", module)
	if err != nil {
		return pinned{}, err
	}
	var m pinned
	return m, json.Unmarshal(text, &m)
}

var pseudo = regexp.MustCompile(`-(\d{8})(\d{6})-([0-9a-f]{7})[0-9a-f]{5}$`)

// tag turns v0.0.0-20260317135248-dc342e1799d7 into upstream's 20260317T135248Z-dc342e1.
func tag(version string) (string, error) {
	m := pseudo.FindStringSubmatch(version)
	if m == nil {
		return "", fmt.Errorf("version %s is not a pseudo-version of a commit", version)
	}
	return m[1] + "T" + m[2] + "Z-" + m[3], nil
}
