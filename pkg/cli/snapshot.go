package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/coracle-dev/coracle/pkg/cli/socket"
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
	if failed := (*fs.PathError)(nil); errors.As(err, &failed) {
		return fmt.Errorf("%s cannot be written: %w", file, failed.Err) // without the temporary name
	}
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
	command.Paragraph(out, fmt.Sprintf("saved %s, %s. It contains the cluster's keys: "+
		"keep it as safe as an administrator's credential.", file, socket.Bytes(bytes)))
	return nil
}
