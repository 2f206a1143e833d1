package rest

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// The pauses after a conflict: what was read may be older than what others wrote, until the cache has that.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
)

// again calls change, which reads and writes an object, until it returns no conflict.
func again(ctx context.Context, change func() error) error {
	pause := backoff.Backoff{First: pauseFirst, Most: pauseMost, Jitter: true}
	for {
		err := change()
		if !apierrors.IsConflict(err) {
			return err
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}
