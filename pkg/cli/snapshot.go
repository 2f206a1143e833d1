package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/state/snapshot"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

// SaveSnapshot saves the cluster of the server on this machine to file, or to out if file is "-". The file must not
// exist. It appears once it is complete, readable only by its owner; then SaveSnapshot prints its name to out.
func SaveSnapshot(ctx context.Context, runDir, file string, out io.Writer) error {
	client := socket.NewClient(runDir)
	if file == "-" {
		return client.Snapshot(ctx, out)
	}
	if _, err := os.Lstat(file); err == nil {
		return fmt.Errorf("%s exists already: choose another name", file)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return err
	}
	err = client.Snapshot(ctx, f)
	var bytes int64
	if info, serr := f.Stat(); serr == nil {
		bytes = info.Size()
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Link(f.Name(), file) // unlike a rename, a link never replaces a file
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "saved %s, %s. It contains the cluster's keys: "+
		"keep it as safe as an administrator's credential.\n", file,
		socket.Bytes(bytes))
	return err
}

// ListSnapshots lists the automatic snapshots in dir, the newest first.
func ListSnapshots(dir string, out io.Writer) error {
	now := time.Now()
	list, err := snapshot.List(dir, now)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "No automatic snapshots in %s.\n", dir)
		return err
	}
	return command.Table(out, "NAME\tAGE\tSIZE", func(line func(...any)) {
		for _, s := range list {
			line(s.Name, duration.HumanDuration(now.Sub(s.Taken)), socket.Bytes(s.Size))
		}
	})
}

// SnapshotFile returns the file to restore: the argument, which may be the name of a snapshot in dir, or without one the
// newest snapshot in dir.
func SnapshotFile(dir string, args []string) (string, error) {
	if len(args) > 0 {
		listed := filepath.Join(dir, args[0])
		if _, err := os.Lstat(listed); err == nil && filepath.Base(args[0]) == args[0] {
			return listed, nil
		}
		return args[0], nil
	}
	newest, err := snapshot.Newest(dir)
	if err == nil && newest == "" {
		err = fmt.Errorf("no automatic snapshots in %s: name the FILE to restore", dir)
	}
	return newest, err
}
