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
	// snapshotEntries is the number of log entries between raft snapshots, which a start has to replay. catchUpEntries
	// is how many are kept in memory. It must be larger, because raft panics if it reads an entry during replay that
	// etcd has discarded.
	snapshotEntries = 3000
	catchUpEntries  = 4000
)

// Directory is etcd's part of a store's directory.
const Directory = "etcd"

const memberName = "coracle"

func (s *Store) etcdConfig() *embed.Config {
	c := embed.NewConfig()
	c.Name = memberName
	c.Dir = filepath.Join(s.cfg.Dir, Directory)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	c.ListenClientUrls, c.ListenPeerUrls = nil, nil
	c.EnableGRPCGateway = false
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZap(s.cfg.Logger, s.fail))
	c.MaxRequestBytes = MaxValueBytes + 64<<10
	c.SnapshotCount = snapshotEntries
	c.SnapshotCatchUpEntries = catchUpEntries
	c.MaxWalFiles, c.MaxSnapFiles = maxSegments, maxSnapshots
	c.QuotaBackendBytes = -1 // checkSpace refuses writes instead: etcd's quota alarm has to be cleared by hand
	c.WarningApplyDuration = time.Second
	c.WarningUnaryRequestDuration = time.Second
	// Durability comes from the log, so the database may be committed in larger batches. An idle node renews its lease
	// every ten seconds: rare commits spare the cards of small boards.
	c.BackendBatchInterval, c.BackendBatchLimit = time.Minute, 2000
	c.TickMs, c.ElectionMs = tickMs, s.election
	c.UnsafeNoFsync = s.cfg.Volatile
	return c
}

// A single member need not wait for an election timeout (see lead), so the ticks are slow: each costs CPU time.
const tickMs, electionMs = 500, 2500

// lead makes a single member leader at once, with the message that a leader sends to transfer leadership. etcd does not
// signal when the member accepts it, so it is sent repeatedly for a few milliseconds. If it has no effect, the election
// timeout elects the member later.
//
// A store that was empty (fresh) has nothing to replay.
func (s *Store) lead(ctx context.Context, e *etcdserver.EtcdServer, fresh bool) {
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
		// The membership may be in the log alone: the database is committed up to a second later.
		members := len(e.Cluster().Members())
		if members > 1 {
			return
		}
		if members == 0 || !fresh && !s.replayed(id) {
			continue
		}
		m := &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), To: &id, From: &id}
		if err := e.Process(ctx, m); err != nil {
			s.cfg.Logger.Debug("waiting for leader election", "error", err)
		}
	}
}

// replayed reports whether raft has applied every entry that the log records as committed; EtcdServer.AppliedIndex
// runs ahead of that. etcd publishes the status of the member started last. A process that starts several at once, as
// only tests do, falls back to the election timeout.
func replayed(id uint64) bool {
	f, ok := expvar.Get("raft.status").(expvar.Func)
	if !ok {
		return false
	}
	st, ok := f.Value().(raft.Status)
	return ok && st.ID == id && st.Applied > 0 && st.Applied >= st.HardState.GetCommit()
}

func firstRevision(e *etcdserver.EtcdServer) int64 {
	tx := e.KV().Read(mvcc.SharedBufReadTxMode, nil)
	defer tx.End()
	return tx.FirstRev()
}

// Lock creates a store's directory and locks it, so that a second process fails instead of waiting. The kernel releases
// the lock when the process ends; the lock file stays.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("could not create the store's directory: %w", err)
	}
	name := filepath.Join(dir, "lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("could not open the store's lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("could not lock %s: %w", name, err)
		}
		var b [32]byte
		n, _ := f.ReadAt(b[:], 0)
		return nil, fmt.Errorf("the data directory %s is in use by process %s: stop that one first, or use another directory",
			dir, strings.TrimSpace(string(b[:n])))
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, fmt.Sprintln(os.Getpid()))); err != nil {
		f.Close()
		return nil, fmt.Errorf("could not write %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
