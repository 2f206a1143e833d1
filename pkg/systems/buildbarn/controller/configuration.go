package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check"
)

// checks runs the checks of configurations outside the reconciler, whose workers serve all namespaces. When a verdict
// is there, it enqueues the part.
type checks struct {
	checker *check.Checker
	begin   func(func(context.Context)) // starts a goroutine
	wake    func(engine.Request)
	now     func() time.Time

	mu    sync.Mutex
	asked map[engine.Request]*question // at most one per part
}

// question is a check that waits, runs or has failed.
type question struct {
	latest check.Request
	of     string // the resource version of the ConfigMap
	failed error
	again  time.Time // the earliest retry after a failure
}

func newChecks(env engine.Env, checker *check.Checker) *checks {
	return &checks{
		checker: checker,
		begin:   env.Go,
		wake:    func(r engine.Request) { env.Enqueue(r, 0) },
		now:     env.Now,
		asked:   map[engine.Request]*question{},
	}
}

// ask starts a check of files. After a recent failure for the same ConfigMap it returns that error instead.
func (c *checks) ask(part engine.Request, r check.Request, version string) error {
	c.mu.Lock()
	q := c.asked[part]
	if q != nil && q.failed != nil && q.of == version && c.now().Before(q.again) {
		c.mu.Unlock()
		return q.failed
	}
	begin := q == nil || q.failed != nil
	if begin {
		q = &question{}
		c.asked[part] = q
	}
	q.latest, q.of = r, version
	c.mu.Unlock()
	if begin {
		c.begin(func(ctx context.Context) { c.answer(ctx, part, q) })
	}
	return nil
}

func (c *checks) answer(ctx context.Context, part engine.Request, q *question) {
	err := c.checker.Check(ctx, part.Namespace, func() check.Request {
		c.mu.Lock()
		defer c.mu.Unlock()
		return q.latest
	})
	c.mu.Lock()
	if err != nil {
		q.failed, q.again = err, c.now().Add(refusedAgain)
	} else if c.asked[part] == q {
		delete(c.asked, part)
	}
	c.mu.Unlock()
	if ctx.Err() == nil {
		c.wake(part)
	}
}

// forget drops a deleted part. Its running check continues.
func (c *checks) forget(part engine.Request) {
	c.mu.Lock()
	delete(c.asked, part)
	c.mu.Unlock()
}

// check observes the verdict on the ConfigMap's files, and starts a check if there is none.
func (r *reconciler) check(p buildbarn.Part, o *Observed) {
	fields := o.Source.Annotations[buildbarn.AnnotationFields]
	if fields != "" && fields != buildbarn.FieldsUnchecked {
		o.Problem = fmt.Sprintf("the annotation %s is %q: set it to %s, or remove it", buildbarn.AnnotationFields, fields,
			buildbarn.FieldsUnchecked)
		return
	}
	want := requestOf(o.Source, defaulted(p))
	v, known, err := r.checks.checker.Known(want)
	if invalid := (*check.Invalid)(nil); errors.As(err, &invalid) {
		o.Problem = invalid.Problem
		return
	}
	if err == nil && known {
		o.Files, o.Facts = v.Files, v.Facts
		return
	}
	if err == nil {
		err = r.checks.ask(engine.RequestFor(p.GetNamespace(), p.GetName()), want, o.Source.ResourceVersion)
	}
	if err != nil { // the rest of the part is still reconciled
		o.Unchecked = err.Error()
		return
	}
	o.Checking = true
}

func requestOf(source *corev1.ConfigMap, p buildbarn.Part) check.Request {
	return check.Request{
		All:       source.Data,
		Component: p.Component(),
		Instance:  instance(p),
		Fields:    source.Annotations[buildbarn.AnnotationFields] == "",
	}
}
