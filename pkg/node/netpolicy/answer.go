package netpolicy

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Next implements Source.
func (r *Resolver) Next(ctx context.Context, node, after string) (rules *Rules, err error) {
	err = r.next(ctx, node, after, func(made *Rules, _ []byte) { rules = made })
	return rules, err
}

// WriteRules calls write with the result of Next as JSON. maxAnswers limits the total size of concurrent answers. If
// a node has more than mostWaiting requests, WriteRules ends the oldest.
func (r *Resolver) WriteRules(ctx context.Context, node, after string, write func(rules []byte)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer r.enter(node, &request{cancel})()
	err := r.next(ctx, node, after, func(_ *Rules, data []byte) { write(data) })
	if err != nil && errors.Is(context.Cause(ctx), errReplaced) {
		return apierrors.NewTooManyRequests("this node waits for its network policy rules in newer requests", 1)
	}
	return err
}

// next waits for rules whose version is not after, and passes them to use.
func (r *Resolver) next(ctx context.Context, node, after string, use func(*Rules, []byte)) error {
	for {
		rules, data, changed, err := r.rules(ctx, node, after)
		if err != nil {
			return err
		}
		if rules != nil {
			defer r.budget.Release(min(int64(len(data)), maxAnswers))
			use(rules, data)
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// rules computes the rules of a node, for one node at a time. It returns nil while the rules are unknown or if their
// version is after. It acquires the length of the encoding from the budget; the caller must release it. The channel
// is closed when the rules may have changed.
func (r *Resolver) rules(ctx context.Context, node, after string) (*Rules, []byte, <-chan struct{}, error) {
	select {
	case r.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, nil, ctx.Err()
	}
	defer func() { <-r.turn }()
	began := time.Now()
	r.mu.Lock()
	known, made, changed := r.version > 0 && (r.known || !r.seen), r.made, r.changed
	r.mu.Unlock()
	if !known {
		return nil, nil, changed, nil
	}
	rules, over := &Rules{}, []excess(nil)
	if made != nil {
		rules, over = made.node(node)
	}
	data := rules.encode()
	r.spent.Add(int64(time.Since(began)))
	r.report(over)
	if rules.Version == after {
		return nil, nil, changed, nil
	}
	// Still holding turn, so that at most one encoding waits for the budget.
	if err := r.budget.Acquire(ctx, min(int64(len(data)), maxAnswers)); err != nil {
		return nil, nil, nil, err
	}
	return rules, data, changed, nil
}

// enter registers a request and returns a function that removes it.
func (r *Resolver) enter(node string, one *request) func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := append(r.waiting[node], one)
	if len(all) > mostWaiting {
		all[0].end(errReplaced)
		all = slices.Delete(all, 0, 1)
	}
	r.waiting[node] = all
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		all := slices.DeleteFunc(r.waiting[node], func(o *request) bool { return o == one })
		if r.waiting[node] = all; len(all) == 0 {
			delete(r.waiting, node)
		}
	}
}
