package store

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Config says where the data is and how much history to keep.
type Config struct {
	// Dir is the data directory of the store alone, made with mode 0700 if it is not there.
	Dir string
	// Logger takes etcd's warnings and errors. Default slog.Default().
	Logger *slog.Logger
	// Values encrypts and decrypts values. Nil stores them as they are.
	Values Values
	// Metrics takes the store's metrics; nil for none. Resource says which kind a key is of, and by which part of the key after
	// "/registry/" all keys of the kind begin; "" for keys of no kind that is served.
	Metrics  prometheus.Registerer
	Resource func(key string) (keys string, gr schema.GroupResource)
	// CompactEvery is how often history is dropped; each pass drops what is older than the pass
	// before, so that history of at least this long stays. Default 5 minutes, as upstream.
	CompactEvery time.Duration
	// RetainRevisions bounds the history between two passes: beyond twice as many revisions a pass
	// is made at once that leaves this many. Default 20,000. A start reads all history, so this and RetainBytes also
	// bound how long a start takes after a storm of writes.
	RetainRevisions int64
	// RetainBytes bounds it in the same way by the size of the values written. Default 64 MiB.
	RetainBytes int64
	// QuotaBytes bounds the live data on disk. Beyond it creates get ErrFull, and updates from an eighth more on, and
	// history is dropped at once; deletes are still taken. The data is in memory too, several times as large. Default 8 GiB.
	QuotaBytes int64
	// MinFreeBytes is the free space on the disk below which creates and updates get ErrUnavailable.
	// The log takes space in pieces of 64 MB. Default 128 MB.
	MinFreeBytes int64
}

// Validate fills in the defaults and reports what is wrong.
func (c *Config) Validate() error {
	if c.Dir == "" {
		return errors.New("store: no data directory given")
	}
	if !filepath.IsAbs(c.Dir) {
		return fmt.Errorf("store: the data directory %q must be an absolute path", c.Dir)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.CompactEvery == 0 {
		c.CompactEvery = 5 * time.Minute
	}
	if c.RetainRevisions == 0 {
		c.RetainRevisions = 20_000
	}
	if c.RetainBytes == 0 {
		c.RetainBytes = 64 << 20
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = 8 << 30
	}
	if c.QuotaBytes > 0 {
		c.RetainBytes = min(c.RetainBytes, max(c.QuotaBytes/16, 1))
	}
	if c.MinFreeBytes == 0 {
		c.MinFreeBytes = 128 << 20
	}
	if c.CompactEvery < 0 || c.RetainRevisions < 0 || c.RetainBytes < 0 || c.QuotaBytes < 0 || c.MinFreeBytes < 0 {
		return errors.New("store: intervals and bounds must be positive")
	}
	return nil
}
