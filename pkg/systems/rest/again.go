package rest

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// The pauses after a conflict: what was read may be older than what others wrote, until the cache has that.
const (
	pauseFirst = 5 * time.Millisecond
	pauseMost  = 500 * time.Millisecond
)

// again calls change, which reads and writes an object, until nobody else has written that meanwhile.
func again(ctx context.Context, change func() error) error {
	for pause := pauseFirst; ; pause = min(2*pause, pauseMost) {
		err := change()
		if !apierrors.IsConflict(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}
