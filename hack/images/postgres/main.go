// Command postgres builds an image of PostgreSQL as an OCI archive from Debian packages of this machine's release.
// It downloads the packages with apt-get and unpacks them without installing them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"

	"github.com/coracle-dev/coracle/hack/images/archive"
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

func main() {
	log.SetFlags(0)
	out := flag.String("out", "", "the archive")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatal("usage: go run ./hack/images/postgres -out FILE")
	}
	if err := build(*out); err != nil {
		log.Fatal(err)
	}
}

func build(out string) error {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "coracle-postgres-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	version, packages, err := resolve()
	if err != nil {
		return err
	}
	fmt.Printf("PostgreSQL %s: %d packages\n", version, len(packages))
	root := filepath.Join(dir, "root")
	if err := unpack(dir, root, packages); err != nil {
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
	text, err := apt("apt-cache", "depends", "postgresql")
	if err != nil {
		return "", nil, err
	}
	found := server.FindStringSubmatch(text)
	if found == nil {
		return "", nil, errors.New("package postgresql depends on no postgresql-VERSION: run apt-get update")
	}
	version = found[1]
	programs := []string{"postgresql-" + version, "postgresql-client-" + version}
	text, err = apt("apt-cache", append([]string{"depends", "--recurse", "--important"}, programs...)...)
	if err != nil {
		return "", nil, err
	}
	needs, of := map[string][]string{}, "" // a package, and indented below it its dependencies
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if name, is := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); is {
			needs[of] = append(needs[of], name)
		} else if !strings.HasPrefix(line, " ") {
			of = line
		}
	}
	wanted := map[string]bool{"tzdata": true}
	for queue := programs; len(queue) > 0; queue = queue[1:] {
		wanted[queue[0]] = true
		for _, name := range needs[queue[0]] {
			if library.MatchString(name) && !wanted[name] {
				wanted[name] = true
				queue = append(queue, name)
			}
		}
	}
	return version, slices.Sorted(maps.Keys(wanted)), nil
}

func unpack(dir, root string, packages []string) error {
	download := exec.Command("apt-get", append([]string{"download", "-q"}, packages...)...)
	download.Dir = dir
	if text, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download: %w: %s", err, text)
	}
	archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range archives {
		if _, err := apt("dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}

func apt(name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), "LC_ALL=C")
	out, err := command.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return string(out), err
}

var unused = regexp.MustCompile(
	`/bitcode/|/llvmjit|/share/(doc|man|locale|lintian|bug|perl)/|/share/postgresql/[0-9]+/man/|/gconv/|^etc/|^var/`)

// collect returns the needed files of the unpacked packages.
func collect(root, version string) ([]archive.File, error) {
	var files []archive.File
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || unused.MatchString(name) {
			return err
		}
		if strings.HasPrefix(name, "usr/bin/") || strings.HasPrefix(name, "usr/sbin/") || strings.HasPrefix(name, "sbin/") ||
			strings.HasPrefix(name, "bin/") {
			return nil // Debian's wrappers
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(path)
			files = append(files, archive.File{Name: name, Link: target})
			return err
		}
		info, err := d.Info()
		if err != nil || !info.Mode().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, archive.File{Name: name, Mode: int64(info.Mode().Perm()), Data: data})
		return err
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
