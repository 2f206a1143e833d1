package admission

import (
	"context"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/warning"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// leastConditions is the processor time of a webhook's conditions if the conditions of other webhooks have used up
// maxCEL. Conditions without loops do not fail then.
const leastConditions = 20 * time.Millisecond

// limitConditions runs a plugin of webhooks with a limit for their match conditions, but not for the calls.
func limitConditions(ctx context.Context, do func(context.Context)) {
	c := &conditions{Context: ctx, left: maxCEL}
	defer c.close()
	do(c)
}

// conditions is the context of a plugin of webhooks. The plugin evaluates the conditions of a webhook and calls it with
// the same context. It tells a CompositionContext, meant for the variables of policies, when conditions begin and what
// each has cost. While conditions are evaluated, the context ends when the limit of processor time is exceeded.
type conditions struct {
	context.Context // of the request
	locked          bool

	mu   sync.Mutex
	now  context.Context // while conditions are evaluated, otherwise nil
	stop func() time.Duration
	left time.Duration
}

var _ cel.CompositionContext = &conditions{}

// Variables is called before the conditions of a webhook are evaluated. Conditions have no variables.
func (c *conditions) Variables(any) ref.Val {
	c.end()
	if !c.locked {
		runtime.LockOSThread()
		c.locked = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now, c.stop = bounded.Thread(c.Context, max(c.left, leastConditions))
	return types.NullValue
}

// GetAndResetCost is called after each condition. It exceeds upstream's budget if the condition was interrupted: the
// other conditions of the webhook are not evaluated, and its failurePolicy applies.
func (c *conditions) GetAndResetCost() int64 {
	if context.Cause(c.current()) != bounded.ErrCPU { //nolint:errorlint // it is never wrapped
		return 0
	}
	c.end()
	warning.AddWarning(c, "", "the match conditions of webhooks used more than "+maxCEL.String()+" of processor time "+
		"for this object, and the webhook's failurePolicy applies: make the object smaller, or simplify the conditions")
	return math.MaxInt64
}

// Deadline is called first for a call of a webhook, maybe by another goroutine, and not for conditions.
func (c *conditions) Deadline() (time.Time, bool) {
	c.end()
	return c.Context.Deadline()
}

// Done implements context.Context.
func (c *conditions) Done() <-chan struct{} { return c.current().Done() }

// Err implements context.Context.
func (c *conditions) Err() error { return c.current().Err() }

func (c *conditions) current() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		return c.now
	}
	return c.Context
}

func (c *conditions) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now != nil {
		c.left -= c.stop()
		c.now = nil
	}
}

func (c *conditions) close() {
	c.end()
	if c.locked {
		runtime.UnlockOSThread()
	}
}
