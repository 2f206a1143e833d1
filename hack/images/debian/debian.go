// Package debian makes files of an image from Debian packages of this machine's release. It downloads the packages with
// apt-get and unpacks them without installing them.
package debian

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
	"slices"
	"strings"

	"github.com/coracle-dev/coracle/hack/images/archive"
)

// Main runs a command with the flag -out, the archive to write. build gets its path and an empty folder, which is
// removed at the end.
func Main(build func(out, dir string) error) {
	log.SetFlags(0)
	out := flag.String("out", "", "the archive")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		log.Fatalf("usage: %s -out FILE", filepath.Base(os.Args[0]))
	}
	dir, err := os.MkdirTemp("", "coracle-image-")
	if err == nil {
		err = errors.Join(os.MkdirAll(filepath.Dir(*out), 0o755), build(*out, dir), os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// depends matches no alternative, which has a bar in front of it.
var depends = regexp.MustCompile(`^ +(?:Pre)?Depends: (.*)`)

// Closure returns the named packages and those that they need, directly or through each other, if needed matches their
// names: packages needed only for installation, such as debconf, do not belong into an image.
func Closure(needed *regexp.Regexp, packages ...string) ([]string, error) {
	text, err := Apt("apt-cache", append([]string{"depends", "--recurse", "--important"}, packages...)...)
	if err != nil {
		return nil, err
	}
	needs, of := map[string][]string{}, "" // a package, and indented below it its dependencies
	for line := range strings.Lines(text) {
		if found := depends.FindStringSubmatch(line); found != nil {
			needs[of] = append(needs[of], found[1])
		} else if !strings.HasPrefix(line, " ") {
			of = strings.TrimRight(line, "\n")
		}
	}
	wanted := map[string]bool{}
	for queue := packages; len(queue) > 0; queue = queue[1:] {
		wanted[queue[0]] = true
		for _, name := range needs[queue[0]] {
			if needed.MatchString(name) && !wanted[name] {
				wanted[name] = true
				queue = append(queue, name)
			}
		}
	}
	return slices.Sorted(maps.Keys(wanted)), nil
}

// Unpack downloads packages into a folder, and unpacks them into another one.
func Unpack(dir, root string, packages []string) error {
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
		if _, err := Apt("dpkg-deb", "-x", deb, root); err != nil {
			return err
		}
	}
	return nil
}

// Apt runs a command of Debian's package manager and returns its output.
func Apt(name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Env = append(os.Environ(), "LC_ALL=C")
	out, err := command.Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, failed.Stderr)
	}
	return string(out), err
}

// Collect returns the links and regular files below root, except those whose names skip reports.
func Collect(root string, skip func(name string) bool) ([]archive.File, error) {
	var files []archive.File
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || skip(name) {
			return err
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
	return files, err
}
