package server

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/version"
	"github.com/coracle-dev/coracle/pkg/cli/socket"
	"github.com/coracle-dev/coracle/pkg/node/agent"
	"github.com/coracle-dev/coracle/pkg/state/snapshot"
	"github.com/coracle-dev/coracle/pkg/state/store"
	"github.com/coracle-dev/coracle/pkg/systems/command"
)

var _ socket.SnapshotBackend = (*process)(nil)

const (
	// keyDir and encryptionDir are the directories that a snapshot includes. storeDir has the store. All are in the
	// data directory.
	keyDir, encryptionDir, storeDir = "pki", "encryption", "store"
	// restoring is the directory in which a snapshot is unpacked. While it exists, no server starts in the data
	// directory.
	restoring = "restoring"
	// snapshotAttempts is how often a snapshot is attempted while keys change.
	snapshotAttempts = 3
)

var errKeysChange = errors.New("keys of the cluster are being replaced: try again once that is done")

func (p *process) Snapshot(ctx context.Context, to io.Writer) error {
	if p.plane == nil {
		return errNoPlane
	}
	err := p.snapshot(ctx, to)
	if err != nil {
		p.log.Warn("could not save a snapshot", "error", err)
	}
	return err
}

func (p *process) snapshot(ctx context.Context, to io.Writer) error {
	for range snapshotAttempts {
		// If the keys are the same before and after the moment of the snapshot, they match the stored objects.
		before, err := clusterKeys(p.DataDir)
		if err != nil {
			return err
		}
		err = p.plane.store.Export(func(revision, size int64, database io.WriterTo) error {
			now, err := clusterKeys(p.DataDir)
			if err != nil {
				return err
			}
			if !snapshot.Same(before, now) {
				return errKeysChange
			}
			return p.archive(ctx, to, before, revision, size, database)
		})
		if !errors.Is(err, errKeysChange) {
			return err
		}
	}
	return errKeysChange
}

func (p *process) archive(ctx context.Context, to io.Writer, keys []snapshot.File, revision, size int64,
	database io.WriterTo) error {
	m := snapshot.Manifest{
		Coracle:          version.Coracle,
		Kubernetes:       version.Kubernetes,
		Node:             p.NodeName,
		Revision:         revision,
		EncryptionConfig: p.EncryptionConfig,
	}
	w, err := snapshot.NewWriter(untilDone{ctx, to}, m, time.Now())
	if err != nil {
		return err
	}
	for _, f := range keys {
		if err := w.AddFile(f); err != nil {
			w.Abort()
			return err
		}
	}
	if err := w.Add(snapshot.Database, size, database); err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}

func clusterKeys(dataDir string) ([]snapshot.File, error) {
	keys, err := snapshot.Files(dataDir, keyDir)
	if err != nil {
		return nil, err
	}
	encryption, err := snapshot.Files(dataDir, encryptionDir)
	return append(keys, encryption...), err
}

type untilDone struct {
	ctx context.Context
	io.Writer
}

func (w untilDone) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.Writer.Write(p)
}

// RestoreSnapshot restores a cluster from an archive, or objects from a file of `etcdctl snapshot save`, into the
// data directory. It fails while a process uses the directory. If the directory has a cluster, replace moves that
// aside into the returned directory old; without replace it is an error. If RestoreSnapshot is killed at any point,
// it leaves the old cluster, the new one, or a directory in which no server starts until the restore is repeated.
func RestoreSnapshot(ctx context.Context, c config.Config, archive io.Reader,
	replace bool) (m snapshot.Manifest, old string, err error) {
	if status, err := socket.NewClient(c.RunDir).Status(ctx); err == nil {
		if err := ownedBy(c, status.DataDir, status.PID); err != nil {
			return m, "", err
		}
		return m, "", errors.New("a cluster runs here: `coracle stop` it first, then restore with --replace")
	} else if !errors.Is(err, socket.ErrNotRunning) {
		return m, "", err
	}
	if err := os.MkdirAll(filepath.Join(c.DataDir, storeDir), 0o700); err != nil {
		return m, "", err
	}
	unlock, err := store.Lock(filepath.Join(c.DataDir, storeDir))
	if err != nil {
		return m, "", err
	}
	defer unlock()
	there, err := clusterIn(c.DataDir)
	if err != nil {
		return m, "", err
	}
	dir := filepath.Join(c.DataDir, restoring)
	unfinished, err := exists(dir)
	if err != nil {
		return m, "", err
	}
	if there && !replace && !unfinished {
		return m, "", fmt.Errorf("%s has a cluster already: --replace moves it aside, into a directory of its own", c.DataDir)
	}
	// An unfinished restore may have installed some parts: dir, which prevents a start, stays until all are installed.
	parts := filepath.Join(dir, "parts")
	err = errors.Join(os.RemoveAll(parts), os.RemoveAll(filepath.Join(dir, storeDir)), os.MkdirAll(parts, 0o700))
	if err != nil {
		return m, "", err
	}
	if m, err = unpack(archive, parts); err == nil {
		err = store.Restore(filepath.Join(parts, snapshot.Database), filepath.Join(dir, storeDir), slog.Default())
	}
	if err != nil && !unfinished { // the old cluster is unchanged
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err != nil {
		return m, "", err
	}
	if there {
		old = filepath.Join(c.DataDir, "replaced-"+time.Now().UTC().Format("20060102-150405"))
	}
	if err := rememberNodeName(c.DataDir, m.Node); err != nil {
		return m, "", err
	}
	return m, old, install(c.DataDir, dir, old)
}

// unpack unpacks and verifies an archive of Coracle or a snapshot of etcd. The latter has no keys, so unpack makes an
// empty directory for them: a missing one means that keys were lost (checkLost).
func unpack(archive io.Reader, dir string) (snapshot.Manifest, error) {
	in := bufio.NewReader(archive)
	if head, _ := in.Peek(snapshot.EtcdHead); snapshot.IsEtcd(head) {
		if err := os.MkdirAll(filepath.Join(dir, keyDir), 0o700); err != nil {
			return snapshot.Manifest{}, err
		}
		return snapshot.Manifest{Etcd: true}, snapshot.UnpackEtcd(in, dir)
	}
	return snapshot.Unpack(in, dir)
}

// install moves the old parts to old and the restored parts into their places. It may be repeated.
func install(dataDir, dir, old string) error {
	if old != "" {
		if err := os.MkdirAll(filepath.Join(old, storeDir), 0o700); err != nil {
			return err
		}
	}
	etcd := filepath.Join(storeDir, store.Directory)
	for _, part := range []struct{ from, to string }{
		{filepath.Join("parts", keyDir), keyDir}, {filepath.Join("parts", encryptionDir), encryptionDir}, {etcd, etcd},
	} {
		to := filepath.Join(dataDir, part.to)
		there, err := exists(to)
		if err != nil {
			return err
		}
		if there {
			if err := os.Rename(to, filepath.Join(old, part.to)); err != nil {
				return err
			}
		}
		if err := os.Rename(filepath.Join(dir, part.from), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// The admin kubeconfig has a certificate of the old cluster. The next start writes a new one.
	if err := os.Remove(filepath.Join(dataDir, command.Kubeconfig)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

func clusterIn(dataDir string) (bool, error) {
	for _, name := range []string{keyDir, encryptionDir, filepath.Join(storeDir, store.Directory)} {
		if there, err := exists(filepath.Join(dataDir, name)); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

func exists(name string) (bool, error) {
	_, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// checkLost fails if the keys or the objects of a cluster were lost. With new keys, every node and client is refused.
// With an empty store, the containers that run are ended, their volumes are deleted, and joined machines leave. A first
// start that was killed before its node had a pod range is repeated.
func checkLost(dataDir string) error {
	keys, objects := pkiDir(dataDir), filepath.Join(dataDir, storeDir)
	stored, err := exists(filepath.Join(objects, store.Directory))
	keyed, keyErr := exists(keys)
	ran, ranErr := exists(filepath.Join(dataDir, "agent", agent.RangeFile))
	if err := errors.Join(err, keyErr, ranErr); err != nil {
		return err
	}
	newest := newestSnapshot(dataDir)
	switch {
	case stored && !keyed:
		return fmt.Errorf("%s is missing, with the keys of the cluster whose objects are in %s: restore it from a backup, "+
			"or the cluster with `coracle snapshot restore %s --replace`; `coracle delete` removes the cluster",
			keys, objects, cmp.Or(newest, "FILE"))
	case keyed && !stored && (newest != "" || ran):
		return fmt.Errorf("%s is missing, with the objects of the cluster whose keys are in %s: restore them with "+
			"`coracle snapshot restore %s --replace`; `coracle delete` removes the cluster", objects, keys,
			cmp.Or(newest, "FILE"))
	}
	return nil
}

func checkRestored(dataDir string) error {
	unfinished, err := exists(filepath.Join(dataDir, restoring))
	if err == nil && unfinished {
		err = fmt.Errorf("a restore into %s was interrupted: repeat `coracle snapshot restore`", dataDir)
	}
	return err
}
