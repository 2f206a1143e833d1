package store

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Config configures a Store.
type Config struct {
	// Dir is the data directory, used by this store alone and created with mode 0700 if it does not exist. Servers, if
	// it has URLs, is an external etcd that is used instead; Dir is then unused.
	Dir     string
	Servers Servers
	// Logger receives etcd's warnings and errors. Default slog.Default().
	Logger *slog.Logger
	// Values encrypts and decrypts values. Nil stores them unchanged.
	Values Values
	// Metrics registers the store's metrics; nil for none. Resource returns the kind of a key, and the part after
	// "/registry/" that all keys of the kind begin with; both are empty for keys of kinds that are not served.
	Metrics  prometheus.Registerer
	Resource func(key string) (keys string, gr schema.GroupResource)
	// CompactEvery is the interval between compactions. Each one discards what is older than the previous one, so at
	// least this much history is retained. Default 5 minutes, as upstream.
	CompactEvery time.Duration
	// RetainRevisions limits the history between two compactions. At twice as many revisions, a compaction that leaves
	// this many runs at once. Default 20,000. A start reads all history, so this and RetainBytes also limit the
	// duration of a start after many writes.
	RetainRevisions int64
	// RetainBytes limits the history in the same way by the size of the written values. Default 64 MiB.
	RetainBytes int64
	// QuotaBytes limits the live data on disk. Above it, creates fail with ErrFull, updates only above an eighth more,
	// and all history is compacted; deletes still succeed. The data takes several times as much memory. Default 8 GiB.
	QuotaBytes int64
	// MinFreeBytes is the free disk space below which creates fail with ErrFull. Below half of it a reserve of disk
	// space is released for updates; deletes always succeed. The log allocates files of 16 MiB. Default 128 MiB, less
	// on disks below 5 GiB (minFreeOf).
	MinFreeBytes int64
	// Snapshot returns the file to restore a damaged store from, for error messages; it is nil or returns "" for none.
	Snapshot func() string
	// Volatile does not sync writes to disk. A crash of the machine loses acknowledged writes and may leave a
	// directory that cannot be opened. For tests.
	Volatile bool
}

// Validate sets defaults and returns an error for invalid settings.
func (c *Config) Validate() error {
	if c.Dir == "" && len(c.Servers.URLs) == 0 {
		return errors.New("store: no data directory given")
	}
	if len(c.Servers.URLs) == 0 && !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("store: the data directory %q must be an absolute path", c.Dir)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.CompactEvery = cmp.Or(c.CompactEvery, 5*time.Minute)
	c.RetainRevisions = cmp.Or(c.RetainRevisions, 20_000)
	c.RetainBytes = cmp.Or(c.RetainBytes, 64<<20)
	c.QuotaBytes = cmp.Or(c.QuotaBytes, 8<<30)
	if c.QuotaBytes > 0 {
		c.RetainBytes = min(c.RetainBytes, max(c.QuotaBytes/16, 1))
	}
	if c.CompactEvery < 0 || c.RetainRevisions < 0 || c.RetainBytes < 0 || c.QuotaBytes < 0 || c.MinFreeBytes < 0 {
		return errors.New("store: intervals and bounds must be positive")
	}
	return nil
}
