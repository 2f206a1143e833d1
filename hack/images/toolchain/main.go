// Command toolchain builds an image with GCC for C++, bash and the usual tools as an OCI archive, from Debian packages
// of this machine's release: the image in which the workers of Bazel's test run actions.
package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
	"github.com/coracle-dev/coracle/hack/images/debian"
)

func main() { debian.Main(build) }

var (
	needed = regexp.MustCompile(`^(lib|zlib|gcc|g\+\+|cpp|binutils|linux-libc-dev)`)
	// unused are documents, translations, and what only sanitizers and link-time optimization need.
	unused = regexp.MustCompile(`/share/(doc|man|info|locale|lintian|bug|gdb)/|/gconv/|^etc/|^var/` +
		`|/lto1$|-lto-dump|/lib(a|hwa|l|t|ub)san[._]`)
	// merged are the folders that newer releases have only below usr.
	merged = []string{"bin", "lib", "lib64", "sbin"}
)

func build(out, dir string) error {
	packages, err := debian.Closure(needed, "g++", "libc6-dev", "bash", "coreutils", "sed", "grep", "findutils")
	if err != nil {
		return err
	}
	fmt.Printf("GCC: %d packages\n", len(packages))
	root := filepath.Join(dir, "root")
	if err := debian.Unpack(dir, root, packages); err != nil {
		return err
	}
	files, err := debian.Collect(root, unused.MatchString)
	if err != nil {
		return err
	}
	for i, f := range files {
		if top, _, _ := strings.Cut(f.Name, "/"); slices.Contains(merged, top) {
			files[i].Name = "usr/" + f.Name
		}
	}
	if !slices.ContainsFunc(files, func(f archive.File) bool { return f.Name == "usr/bin/g++" }) {
		return errors.New("the downloaded packages do not contain the program g++")
	}
	for _, dir := range merged {
		files = append(files, archive.File{Name: dir, Link: "usr/" + dir})
	}
	files = append(files,
		archive.File{Name: "usr/bin/sh", Link: "bash"},
		archive.File{
			Name: "etc/passwd",
			Mode: 0o644,
			Data: []byte("root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"),
		},
		archive.File{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		archive.File{Name: "tmp/", Mode: 0o1777})
	config := v1.Config{Cmd: []string{"/bin/bash"}, Env: []string{"PATH=/usr/bin"}}
	return archive.Write(out, archive.Image{Arch: runtime.GOARCH, Config: config, Files: files},
		"docker.io/coracle/toolchain:latest")
}
