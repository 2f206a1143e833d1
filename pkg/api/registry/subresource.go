package registry

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

// createSubresource handles creates on a subresource with the row's Creator.
func (c *call) createSubresource(obj runtime.Object, o metav1.CreateOptions) (Result, error) {
	if err := c.mayCreate(c.Name); err != nil {
		return Result{}, err
	}
	s := c.Resource.Subresource(c.Subresource)
	if s == nil || s.Create == nil {
		return Result{}, c.noSubresource()
	}
	answer, err := s.Create(c.ctx, &parent{c}, obj, o)
	if err != nil {
		return Result{}, err
	}
	if answer == nil {
		answer = &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status:   metav1.StatusSuccess,
			Code:     201,
		}
	}
	return Result{Object: answer, Created: true}, nil
}

// parent is the object that a subresource call is made on.
type parent struct{ *call }

var _ kind.Parent = (*parent)(nil)

func (p *parent) Target() (r *kind.Resource, namespace, name string) {
	return p.Resource, p.Namespace, p.Name
}

func (p *parent) Admit(internal runtime.Object, o *metav1.CreateOptions) error {
	return p.admitCreate(internal, o)
}

func (p *parent) Change(change func(client.Object) (client.Object, error)) (client.Object, error) {
	w := &write{call: p.call, internal: true, force: true}
	w.change = func(e *cache.Entry) (client.Object, error) {
		return change(e.Object.DeepCopyObject().(client.Object))
	}
	res, err := w.run()
	if err != nil {
		return nil, err
	}
	out, err := res.Value()
	if err != nil {
		return nil, err
	}
	return out.(client.Object), nil
}

func (p *parent) Delete(o metav1.DeleteOptions) error {
	one := *p.call
	one.Subresource, one.verb, one.dry = "", "delete", len(o.DryRun) > 0
	_, rev, err := one.remove(o)
	if err != nil {
		return err
	}
	return p.waitFor(p.ctx, rev)
}

func (p *parent) Current() (client.Object, error) {
	if _, err := p.sync(p.ctx); err != nil {
		return nil, err
	}
	e := p.entry()
	if e == nil {
		return nil, p.notFound()
	}
	return e.Object, nil
}

func (p *parent) Siblings(gvk schema.GroupVersionKind) []client.Object {
	row := p.kinds.Table().ByGVK(gvk)
	if row == nil {
		return nil
	}
	entries, _ := p.cache.List(row, cache.Query{Namespace: p.Namespace})
	out := make([]client.Object, len(entries))
	for i, e := range entries {
		out[i] = e.Object
	}
	return out
}

func (p *parent) Sibling(gvk schema.GroupVersionKind, name string) (kind.Parent, error) {
	row := p.kinds.Table().ByGVK(gvk)
	if row == nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("no kind %s is served", gvk))
	}
	return &parent{&call{Registry: p.Registry, Target: Target{Resource: row, Namespace: p.Namespace, Name: name},
		ctx: p.ctx, row: row.Stored(), user: p.user, verb: "update"}}, nil
}

func (p *parent) Read(gvk schema.GroupVersionKind, namespace, name string) client.Object {
	row := p.kinds.Table().ByGVK(gvk)
	if row == nil {
		return nil
	}
	e := p.cache.Get(row, namespace, name)
	if e == nil {
		return nil
	}
	return e.Object
}

var errNoTokens = apierrors.NewServiceUnavailable("this server has no key that signs service account tokens")

// Change modifies a stored object for the server itself: without authorization, strategy and admission, retrying on
// conflicts. It returns the error of change, if any.
func (r *Registry) Change(ctx context.Context, t Target, change func(client.Object) (client.Object, error)) error {
	c, err := r.begin(ctx, t, "update", nil)
	if err != nil {
		return err
	}
	_, err = (&parent{c}).Change(change)
	return err
}
