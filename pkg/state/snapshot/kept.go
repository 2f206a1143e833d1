package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
)

// Kept is a snapshot in the directory of the automatic ones. Its name has the time at which it was taken and a revision
// up to which it is complete, so that neither depends on the file's times or needs its manifest, which is at its end.
type Kept struct {
	Name     string
	Taken    time.Time
	Revision int64
	Size     int64 // bytes
}

const (
	keptTime   = "20060102-150405"
	keptEnding = ".snapshot"
)

var keptName = regexp.MustCompile(`^(\d{8}-\d{6})-(\d{1,19})\` + keptEnding + `$`)

// List returns the snapshots in dir, the newest first. Snapshots from after now were taken before the clock was set
// back: they come last. Other files are ignored. There are none if dir does not exist.
func List(dir string, now time.Time) ([]Kept, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []Kept
	for _, e := range entries {
		parts := keptName.FindStringSubmatch(e.Name())
		info, err := e.Info()
		if parts == nil || err != nil || !info.Mode().IsRegular() {
			continue
		}
		taken, err := time.Parse(keptTime, parts[1])
		revision, parseErr := strconv.ParseInt(parts[2], 10, 64)
		if err == nil && parseErr == nil {
			list = append(list, Kept{e.Name(), taken, revision, info.Size()})
		}
	}
	age := func(k Kept) time.Duration {
		if age := now.Sub(k.Taken); age >= 0 {
			return age
		}
		return 1<<63 - 1
	}
	slices.SortFunc(list, func(a, b Kept) int {
		return cmp.Or(cmp.Compare(age(a), age(b)), strings.Compare(b.Name, a.Name))
	})
	return list, nil
}

// Newest returns the path of the newest snapshot in dir, or "" if there is none.
func Newest(dir string) (string, error) {
	list, err := List(dir, time.Now())
	if err != nil || len(list) == 0 {
		return "", err
	}
	return filepath.Join(dir, list[0].Name), nil
}

// Keep writes a snapshot into dir, which it creates, and then removes all but the newest, retain in number. A killed
// process leaves a file that RemoveUnfinished removes.
func Keep(dir string, now time.Time, revision int64, retain int, write func(io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%d%s", now.UTC().Format(keptTime), revision, keptEnding)
	if err := atomicfile.Stream(filepath.Join(dir, name), write); err != nil {
		return err
	}
	list, err := List(dir, now)
	if err != nil {
		return err
	}
	for _, old := range list[min(retain, len(list)):] {
		err = errors.Join(err, os.Remove(filepath.Join(dir, old.Name)))
	}
	return err
}

// RemoveUnfinished removes the files that Keep was writing when the process was killed.
func RemoveUnfinished(dir string) error {
	unfinished, err := filepath.Glob(filepath.Join(dir, "*"+keptEnding+atomicfile.Suffix))
	for _, name := range unfinished {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
