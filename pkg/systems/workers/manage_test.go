package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/workers/queue"
)

// TestDeadMessagesDoNotExpire checks that only a message that a program may still get has a time at which it expires.
func TestDeadMessagesDoNotExpire(t *testing.T) {
	m := queue.Message{State: queue.Waiting, Expires: time.Unix(1, 0)}
	require.Equal(t, m.Expires, queued(m).Expires.Time)
	m.State = queue.Dead
	require.Nil(t, queued(m).Expires)
}
