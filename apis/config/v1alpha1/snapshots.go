package v1alpha1

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Snapshots configures the snapshots of the store that a server takes by itself.
type Snapshots struct {
	// SnapshotInterval is the time between two snapshots. 0 disables them.
	SnapshotInterval time.Duration
	// SnapshotRetention is how many are kept.
	SnapshotRetention int
}

// Bounds of Snapshots.
const (
	shortestSnapshotInterval = time.Minute
	mostSnapshots            = 1000
)

func (s Snapshots) validate() error {
	var errs []error
	if s.SnapshotInterval != 0 && s.SnapshotInterval < shortestSnapshotInterval {
		errs = append(errs, fmt.Errorf("snapshot-interval %s is neither 0, which disables snapshots, nor at least %s",
			s.SnapshotInterval, shortestSnapshotInterval))
	}
	if s.SnapshotRetention < 1 || s.SnapshotRetention > mostSnapshots {
		errs = append(errs, fmt.Errorf("snapshot-retention %d is not within 1 to %d", s.SnapshotRetention, mostSnapshots))
	}
	return errors.Join(errs...)
}

func (s *Snapshots) options(f *pflag.FlagSet) {
	f.DurationVar(&s.SnapshotInterval, "snapshot-interval", time.Hour,
		"time between two automatic snapshots, which are in the directory snapshots of the data directory; 0 disables them")
	f.IntVar(&s.SnapshotRetention, "snapshot-retention", 5, "number of automatic snapshots to retain")
}
