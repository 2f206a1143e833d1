// Command postgres builds an image of PostgreSQL as an OCI archive from Debian packages of this machine's release.
// It downloads the packages with apt-get and unpacks them without installing them.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
	"github.com/coracle-dev/coracle/hack/images/debian"
)

// entrypoint creates a database in $PGDATA atomically if there is none, and serves it.
const entrypoint = `#!/bin/sh
set -eu
if [ ! -e "$PGDATA" ]; then
  rm -rf "$PGDATA.new" # of a start that was killed
  echo "$POSTGRES_PASSWORD" > /tmp/password
  initdb -D "$PGDATA.new" -U postgres --pwfile=/tmp/password -A scram-sha-256 -E UTF8 --no-locale
  rm /tmp/password
  echo "host all all all scram-sha-256" >> "$PGDATA.new/pg_hba.conf"
  sync
  mv "$PGDATA.new" "$PGDATA"
fi
chmod 700 "$PGDATA" # fsGroup lets the group in, which postgres refuses
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
`

func main() { debian.Main(build) }

func build(out, dir string) error {
	version, packages, err := resolve()
	if err != nil {
		return err
	}
	fmt.Printf("PostgreSQL %s: %d packages\n", version, len(packages))
	root := filepath.Join(dir, "root")
	if err := debian.Unpack(dir, root, packages); err != nil {
		return err
	}
	files, err := collect(root, version)
	if err != nil {
		return err
	}
	busybox, err := os.ReadFile("/usr/bin/busybox")
	if errors.Is(err, fs.ErrNotExist) {
		busybox, err = os.ReadFile("/bin/busybox")
	}
	if err != nil {
		return fmt.Errorf("apt-get install busybox-static: %w", err)
	}
	files = append(files,
		archive.File{Name: "entrypoint", Mode: 0o755, Data: []byte(entrypoint)},
		archive.File{Name: "bin/busybox", Mode: 0o755, Data: busybox},
		archive.File{
			Name: "etc/passwd",
			Mode: 0o644,
			Data: []byte("root:x:0:0:root:/:/bin/sh\npostgres:x:999:999:PostgreSQL:/tmp:/bin/sh\n"),
		},
		archive.File{Name: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\npostgres:x:999:\n")},
		archive.File{Name: "tmp/", Mode: 0o1777})
	for _, applet := range []string{"sh", "cat", "chmod", "echo", "mv", "rm", "sync", "seq", "sleep"} {
		files = append(files, archive.File{Name: "bin/" + applet, Link: "busybox"})
	}
	for _, dir := range []string{"lib", "lib64"} { // newer releases have these only below usr
		if _, err := os.Lstat(filepath.Join(root, dir)); err != nil {
			files = append(files, archive.File{Name: dir, Link: "usr/" + dir})
		}
	}
	bin := "/usr/lib/postgresql/" + version + "/bin"
	config := v1.Config{
		Entrypoint: []string{"/entrypoint"}, User: "999:999", StopSignal: "SIGINT",
		ExposedPorts: map[string]struct{}{"5432/tcp": {}},
		Env: []string{
			"PATH=" + bin + ":/bin", "PGDATA=/data/postgres", "PGHOST=/tmp", "PGUSER=postgres",
			"LD_LIBRARY_PATH=" + strings.Join(libraries(root), ":"),
		},
	}
	return archive.Write(out, archive.Image{Arch: runtime.GOARCH, Config: config, Files: files},
		"docker.io/coracle/postgres:latest", "docker.io/coracle/postgres:"+version)
}

var library = regexp.MustCompile(`^(lib|zlib)([^l]|l[^l])`)

var server = regexp.MustCompile(`(?m)^ +Depends: postgresql-([0-9]+)$`)

// resolve returns the release's version of PostgreSQL, and the packages with its programs and the libraries that
// they need. It leaves out packages needed only for installation, such as perl and debconf, and LLVM (libllvm),
// which only compiles queries.
func resolve() (version string, packages []string, err error) {
	text, err := debian.Apt("apt-cache", "depends", "postgresql")
	if err != nil {
		return "", nil, err
	}
	found := server.FindStringSubmatch(text)
	if found == nil {
		return "", nil, errors.New("package postgresql depends on no postgresql-VERSION: run apt-get update")
	}
	version = found[1]
	packages, err = debian.Closure(library, "postgresql-"+version, "postgresql-client-"+version)
	return version, append(packages, "tzdata"), err
}

var unused = regexp.MustCompile(
	`/bitcode/|/llvmjit|/share/(doc|man|locale|lintian|bug|perl)/|/share/postgresql/[0-9]+/man/|/gconv/|^etc/|^var/`)

// wrapper matches Debian's own programs around PostgreSQL's.
var wrapper = regexp.MustCompile(`^(usr/)?s?bin/`)

// collect returns the needed files of the unpacked packages.
func collect(root, version string) ([]archive.File, error) {
	files, err := debian.Collect(root, func(name string) bool {
		return unused.MatchString(name) || wrapper.MatchString(name)
	})
	if err == nil &&
		!slices.ContainsFunc(files, func(f archive.File) bool {
			return f.Name == "usr/lib/postgresql/"+version+"/bin/postgres"
		}) {
		err = errors.New("the downloaded packages do not contain the program postgres")
	}
	return files, err
}

// libraries returns the folders of shared libraries: the image has no cache of the dynamic linker.
func libraries(root string) []string {
	var dirs []string
	for _, pattern := range []string{"lib/*-linux-gnu", "usr/lib/*-linux-gnu"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, dir := range found {
			dirs = append(dirs, strings.TrimPrefix(dir, root))
		}
	}
	return dirs
}
