package rest

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/coracle-dev/coracle/pkg/base/backoff"
)

// The pauses after a conflict. The object that was read may be stale until the cache has other writers' changes.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
)

// again calls change until it returns no conflict. change must read the object anew each time.
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
