package store

import (
	"context"
	"errors"
	"expvar"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

const (
	// How many log entries lie between two snapshots of the raft state, which a start has to replay, and
	// how many are kept in memory. The second is larger with room for a batch: raft panics if it looks for
	// an entry that it is still replaying and etcd has already let go of.
	snapshotEntries = 3000
	catchUpEntries  = 4000
)

// etcdDir is etcd's part of the data directory.
const etcdDir = "etcd"

// etcdConfig describes one member without listeners.
func (s *Store) etcdConfig() *embed.Config {
	c := embed.NewConfig()
	c.Name = "coracle"
	c.Dir = filepath.Join(s.cfg.Dir, etcdDir)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ListenClientUrls, c.ListenPeerUrls = nil, nil
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZap(s.cfg.Logger, s.fail))
	c.MaxRequestBytes = MaxValueBytes + 64<<10
	c.SnapshotCount = snapshotEntries
	c.SnapshotCatchUpEntries = catchUpEntries
	c.MaxWalFiles, c.MaxSnapFiles = maxSegments, maxSnapshots
	c.QuotaBackendBytes = -1 // the store's own check refuses writes without the alarm that has to be cleared by hand
	c.WarningApplyDuration = time.Second
	c.WarningUnaryRequestDuration = time.Second
	// The log is what makes a write durable; the database behind it may be written in larger pieces.
	c.BackendBatchInterval, c.BackendBatchLimit = time.Second, 2000
	c.TickMs, c.ElectionMs = tickMs, electionMs
	return c
}

// A lone member need not wait for an election to time out (see lead), so the ticks are slow: each costs
// processor time, all the time.
const tickMs, electionMs = 500, 2500

// lead makes a lone member the leader at once, by the message that a leader sends to the member it hands
// over to. Nothing tells when the member is ready to take it, so it is repeated for these few milliseconds.
// Without effect the election timeout does the same, later.
func (s *Store) lead(ctx context.Context, e *etcdserver.EtcdServer) {
	id := uint64(e.MemberID())
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	for e.Lead() == 0 {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		case <-s.failed:
			return
		case <-e.StopNotify():
			return
		}
		// Who the members are may itself stand only in the log: the database is written a second later than it.
		members := len(e.Cluster().Members())
		if members > 1 {
			return
		}
		if members == 0 || !replayed(id) {
			continue
		}
		m := &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &id, From: &id}
		if err := e.Process(ctx, m); err != nil {
			s.cfg.Logger.Debug("waiting for leader election", "error", err)
		}
	}
}

// replayed says whether raft has applied all that the log says is committed. EtcdServer.AppliedIndex runs
// ahead of that. etcd publishes the status of the member started last; where a process has several that
// start at once, as only tests do, the election timeout is there.
func replayed(id uint64) bool {
	f, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	st, ok := f.Value().(raft.Status)
	return ok && st.ID == id && st.Applied > 0 && st.Applied >= st.HardState.GetCommit()
}

// firstRevision is the oldest revision that can be read.
func firstRevision(e *etcdserver.EtcdServer) int64 {
	tx := e.KV().Read(mvcc.SharedBufReadTxMode, nil)
	defer tx.End()
	return tx.FirstRev()
}

// lockDir makes the directory and takes its lock, so that a second process gets an error instead of
// waiting. The lock ends with the process, however that ends; the file stays.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make the store's directory: %w", err)
	}
	name := filepath.Join(dir, "lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the store: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("cannot lock %s: %w", name, err)
		}
		var b [32]byte
		n, _ := f.ReadAt(b[:], 0)
		return nil, fmt.Errorf("the data directory %s is in use by process %s: stop that one first, or use another directory",
			dir, strings.TrimSpace(string(b[:n])))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot write %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
