package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/atomicfile"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
)

// ownerFile records the owner of a run directory, as JSON in one line. A process writes it before it acquires
// anything. Run directories of earlier versions lack it until their cluster is started again.
const ownerFile = "owner.json"

// runOwner is the cluster that a run directory belongs to.
type runOwner struct {
	DataDir string `json:"dataDir"`
	// Instance is the result of instance, which could differ once files of the data directory were lost.
	Instance string `json:"instance"`
}

// runDirFile records, in a data directory, the path of its cluster's run directory.
const runDirFile = "run-dir"

var validInstance = regexp.MustCompile(`^cor[a-z0-9]{4,13}$`)

// answerTimeout is the timeout for asking the process that uses a run directory for its data directory.
const answerTimeout = 2 * time.Second

// checkRunDir returns an error if the run directory belongs to the cluster of another data directory, running or
// killed, or if the data directory's cluster has another run directory, which records the network of its pods.
func checkRunDir(ctx context.Context, c config.Config) error {
	if dir := otherRunDir(c); dir != "" {
		return fmt.Errorf("the cluster in %s has the run directory %s, where the network of its pods is recorded: give "+
			"--run-dir %s", c.DataDir, dir, dir)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	status, err := socket.NewClient(c.RunDir).Status(ctx)
	if err == nil {
		return ownedBy(c, status.DataDir, status.PID)
	}
	switch o, readErr := runDirOwner(c.RunDir); {
	case readErr != nil:
		return readErr
	case o.DataDir != "":
		return ownedBy(c, o.DataDir, 0)
	}
	if errors.Is(err, socket.ErrNotRunning) || holder(c.DataDir) != 0 { // our own process may hang
		return nil
	}
	return fmt.Errorf("a process that does not respond uses the run directory %s, and none the data directory %s: give "+
		"the --data-dir and --run-dir of one cluster (%w)", c.RunDir, c.DataDir, err)
}

// claimRunDir records that the run directory, which must exist, belongs to the data directory. It fails if it
// belongs to another one. It may be repeated.
func claimRunDir(c config.Config) error {
	f, err := os.OpenFile(filepath.Join(c.RunDir, ownerFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	// The lock excludes other processes that claim the directory now. It ends when the file is closed or the
	// process dies.
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	switch o, err := readOwner(f); {
	case err != nil:
		return err
	case o.DataDir != "":
		if err := ownedBy(c, o.DataDir, 0); err != nil {
			return err
		}
		return recordRunDir(c)
	}
	text, err := json.Marshal(runOwner{DataDir: resolved(c.DataDir), Instance: instance(c)})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	if _, err := f.WriteAt(append(text, '\n'), 0); err != nil {
		return err
	}
	return errors.Join(f.Sync(), atomicfile.SyncDir(c.RunDir), recordRunDir(c))
}

func recordRunDir(c config.Config) error {
	file, dir := filepath.Join(c.DataDir, runDirFile), resolved(c.RunDir)+"\n"
	if text, err := bounded.File(file, unix.PathMax); err == nil && string(text) == dir {
		return nil
	}
	return atomicfile.Write(file, []byte(dir))
}

// otherRunDir returns the run directory of the data directory's cluster if it differs from the configured one and
// still exists, else "".
func otherRunDir(c config.Config) string {
	text, err := bounded.File(filepath.Join(c.DataDir, runDirFile), unix.PathMax)
	dir := strings.TrimSuffix(string(text), "\n")
	if err != nil || !filepath.IsAbs(dir) || dir == resolved(c.RunDir) {
		return ""
	}
	if o, err := runDirOwner(dir); err != nil || o.DataDir != resolved(c.DataDir) {
		return ""
	}
	return dir
}

// runDirOwner returns the recorded owner of a run directory. Its DataDir is empty if there is none.
func runDirOwner(runDir string) (runOwner, error) {
	f, err := os.Open(filepath.Join(runDir, ownerFile))
	if errors.Is(err, fs.ErrNotExist) {
		return runOwner{}, nil
	}
	if err != nil {
		return runOwner{}, err
	}
	defer f.Close()
	return readOwner(f)
}

// readOwner reads an owner file. An incomplete file means no owner: its writer was killed before it acquired anything.
func readOwner(f *os.File) (o runOwner, err error) {
	text, err := bounded.All(f, 4*unix.PathMax)
	if err == nil && !bytes.HasSuffix(text, []byte("\n")) {
		return runOwner{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err == nil && (!filepath.IsAbs(o.DataDir) || !validInstance.MatchString(o.Instance)) {
		err = fmt.Errorf("%q and %q are no data directory and instance", o.DataDir, o.Instance)
	}
	if err != nil {
		return runOwner{}, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return o, nil
}

// ownedBy returns an error if the owner of the run directory is not the configured data directory. pid is the
// owner's process, or 0 if unknown.
func ownedBy(c config.Config, dataDir string, pid int) error {
	if resolved(dataDir) == resolved(c.DataDir) {
		return nil
	}
	if pid == 0 {
		pid = holder(dataDir)
	}
	if pid != 0 {
		return fmt.Errorf("%s is the run directory of the cluster in %s, which runs with pid %d: give --data-dir %s for "+
			"that one, or another --run-dir for the one in %s",
			c.RunDir, dataDir, pid, dataDir, c.DataDir)
	}
	if _, err := os.Stat(dataDir); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is the run directory of a cluster whose data directory %s is gone: `coracle delete "+
			"--data-dir %s --run-dir %s` removes what is left of it on this machine",
			c.RunDir, dataDir, dataDir, c.RunDir)
	}
	return fmt.Errorf("%s is the run directory of the cluster in %s, which is not running: give --data-dir %s for that "+
		"one (`coracle start` resumes it, `coracle delete` removes it), or another --run-dir for the one in %s",
		c.RunDir, dataDir, dataDir, c.DataDir)
}
