package registry

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// nameAttempts is how many names are generated for one create before AlreadyExists is returned, as upstream.
const nameAttempts = 8

// Create writes obj, which is decoded but not defaulted, in a served version. The caller must not use obj afterwards.
func (r *Registry) Create(ctx context.Context, t Target, obj runtime.Object, o metav1.CreateOptions) (Result, error) {
	if errs := validation.ValidateCreateOptions(&o); len(errs) > 0 {
		return Result{}, apierrors.NewInvalid(metaKind("CreateOptions"), "", errs)
	}
	if t.Subresource == "" && t.Name == "" {
		if m, ok := obj.(client.Object); ok {
			t.Name = m.GetName()
		}
	}
	c, err := r.begin(ctx, t, "create", o.DryRun)
	if err != nil {
		return Result{}, err
	}
	if t.Subresource != "" {
		return c.createSubresource(obj, o)
	}
	in, ok := obj.(client.Object)
	if !ok {
		return Result{}, apierrors.NewBadRequest(fmt.Sprintf("a %T is not a %s", obj, t.Resource.Kind))
	}
	if err := rest.EnsureObjectNamespaceMatchesRequestNamespace(c.Namespace, in); err != nil {
		return Result{}, err
	}
	if r := c.Resource; r.Default != nil {
		r.Default(in)
	}
	dedupOwners(c.ctx, in, false)
	return c.create(in, &o, false)
}

// create admits and writes an object that has its defaults. managed is set if its managed fields have been recorded.
func (c *call) create(in client.Object, o *metav1.CreateOptions, managed bool) (Result, error) {
	rest.WipeObjectMetaSystemFields(in)
	if err := c.checkCost(in, nil); err != nil {
		return Result{}, err
	}
	obj, err := c.Resource.Internal(in)
	if err != nil {
		return Result{}, apierrors.NewBadRequest(err.Error())
	}
	if !managed {
		if err := c.manageNew(obj, o.FieldManager); err != nil {
			return Result{}, err
		}
	}
	if err := c.mayCreate(c.Name); err != nil {
		return Result{}, err
	}
	if err := c.admit(obj, nil, admission.Create, o); err != nil {
		return Result{}, err
	}
	dedupOwners(c.ctx, obj, true)
	m, err := metaOf(obj)
	if err != nil {
		return Result{}, err
	}
	if m.GetName() != "" || m.GetGenerateName() == "" {
		return c.createOnce(obj, o)
	}
	var res Result
	for range nameAttempts {
		res, err = c.createOnce(obj.DeepCopyObject(), o)
		if !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return res, err
}

// createOnce makes one attempt with the object's name, or a generated one. For a Service, it allocates again as
// long as another write reserves the cluster IP or node port first.
func (c *call) createOnce(obj runtime.Object, o *metav1.CreateOptions) (Result, error) {
	if c.services == nil || c.row != c.services {
		return c.createNamed(obj, o)
	}
	for {
		res, err := c.createNamed(obj.DeepCopyObject(), o)
		if !errors.Is(err, errReserved) {
			return res, err
		}
		if _, err := c.sync(c.ctx); err != nil {
			return Result{}, err
		}
	}
}

func (c *call) createNamed(obj runtime.Object, o *metav1.CreateOptions) (Result, error) {
	m, err := metaOf(obj)
	if err != nil {
		return Result{}, err
	}
	rest.FillObjectMetaSystemFields(m)
	m.SetCreationTimestamp(seconds(m.GetCreationTimestamp()))
	generated := m.GetName() == "" && m.GetGenerateName() != ""
	if generated {
		m.SetName(c.strategy().GenerateName(m.GetGenerateName()))
	}
	if err := c.complete(obj, nil); err != nil {
		return Result{}, err
	}
	if err := c.beforeCreate(obj); err != nil {
		return Result{}, err
	}
	if err := c.checkEscalation(obj, nil); err != nil {
		return Result{}, err
	}
	name := m.GetName()
	if err := c.validate(obj, nil, name, admission.Create, o); err != nil {
		return Result{}, err
	}
	// As upstream, this check comes late and does not apply to dry runs: upstream's storage makes it.
	asked := m.GetResourceVersion()
	if version, err := strconv.ParseUint(asked, 10, 64); err == nil && version != 0 && !c.dry {
		return Result{}, apierrors.NewBadRequest("resourceVersion should not be set on objects to be created")
	}
	charged, err := c.charge(obj, nil, name, admission.Create, o, 0)
	if err != nil {
		return Result{}, err
	}
	defer charged.release()
	out, value, err := c.encode(obj)
	if err != nil {
		return Result{}, err
	}
	if out, value, err = c.encodeStorable(out, value); err != nil {
		return Result{}, err
	}
	key := c.row.Key(c.Namespace, name)
	if c.dry {
		if _, err = c.sync(c.ctx); err == nil && c.cache.Get(c.row, c.Namespace, name) != nil {
			err = store.ErrExists
		}
		if err == nil {
			out.SetResourceVersion(asked)
			return Result{Object: c.shown(out), Created: true}, nil
		}
	} else {
		var rev int64
		defer c.cache.Offer(key, value, out).Withdraw()
		if rev, err = c.commitOp(store.Op{Key: key, Value: value, TTL: c.ttl()}, out, nil); err == nil {
			res, err := c.answer(name, rev, out)
			res.Created = true
			return res, err
		}
	}
	if errors.Is(err, errReserved) {
		return Result{}, err
	}
	if !errors.Is(err, store.ErrExists) {
		return Result{}, status(err, c.gr(), name)
	}
	taken := apierrors.NewAlreadyExists(c.gr(), name)
	if generated {
		taken = apierrors.NewGenerateNameConflict(c.gr(), name, 1)
	} else if e := c.cache.Get(c.row, c.Namespace, name); e != nil && e.Object.GetDeletionTimestamp() != nil {
		taken.ErrStatus.Message = "object is being deleted: " + taken.ErrStatus.Message
	}
	return Result{}, taken
}

func (c *call) encode(obj runtime.Object) (client.Object, []byte, error) {
	out, err := c.row.External(obj)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	if c.row.PerVersion && c.row != c.Resource && c.row.Default != nil {
		c.row.Default(out) // the requested version's defaults have been set
	}
	out.SetResourceVersion("")
	out.SetSelfLink("")
	out.GetObjectKind().SetGroupVersionKind(c.row.GroupVersionKind)
	if c.row.Proto && !c.row.StoredJSON {
		c.empties.clear(reflect.ValueOf(out))
	}
	value, err := c.row.Encode(out)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	return out, value, nil
}

// ttl is the lifetime of the call's object after this write; 0 means no limit.
func (c *call) ttl() time.Duration {
	if !c.row.Expires {
		return 0
	}
	return c.cfg.EventTTL
}

// answer waits until the cache shows the write and returns its entry. If another write has replaced the object by
// then, it returns out.
func (c *call) answer(name string, rev int64, out client.Object) (Result, error) {
	if err := c.waitFor(c.ctx, rev); err != nil {
		return Result{}, err
	}
	if e := c.cache.Get(c.row, c.Namespace, name); e != nil && e.Revision == rev {
		return c.show(e)
	}
	return Result{Object: c.shown(kind.AtRevision(out, rev))}, nil
}

// shown converts an object of the stored version to the requested one.
func (c *call) shown(o client.Object) runtime.Object {
	if c.row == c.Resource {
		return o
	}
	out, err := c.Resource.From(o)
	if err != nil {
		return o
	}
	return out
}

func metaOf(obj runtime.Object) (metav1.Object, error) {
	switch m := obj.(type) {
	case metav1.Object:
		return m, nil
	case metav1.ObjectMetaAccessor:
		return m.GetObjectMeta(), nil
	}
	return nil, apierrors.NewInternalError(fmt.Errorf("%T has no metadata", obj))
}

func metaKind(k string) schema.GroupKind { return schema.GroupKind{Group: metav1.GroupName, Kind: k} }

// owner is a comparable owner reference: text replaces pointers.
type owner struct {
	metav1.OwnerReference
	controller, blocks string
}

func text(b *bool) string {
	if b == nil {
		return ""
	}
	return strconv.FormatBool(*b)
}

func dedupOwners(ctx context.Context, obj runtime.Object, admitted bool) {
	m, err := metaOf(obj)
	if err != nil || len(m.GetOwnerReferences()) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var twice []string
	seen := map[owner]bool{}
	for _, ref := range m.GetOwnerReferences() {
		key := owner{ref, text(ref.Controller), text(ref.BlockOwnerDeletion)}
		key.Controller, key.BlockOwnerDeletion = nil, nil
		if seen[key] {
			twice = append(twice, string(ref.UID))
			continue
		}
		seen[key] = true
		kept = append(kept, ref)
	}
	if len(twice) == 0 {
		return
	}
	when := ""
	if admitted {
		when = " after mutating admission happens"
	}
	warning.AddWarning(ctx, "",
		fmt.Sprintf(".metadata.ownerReferences contains duplicate entries%s; API server dedups owner references in 1.20+, "+
			"and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: %v",
			when, bounded.Text(strings.Join(twice, ", "), maxDetail)))
	m.SetOwnerReferences(kept)
}

// seconds truncates a time as encoding does. The cache keeps the written object itself, which must be equal to what
// another server decodes from the store.
func seconds(t metav1.Time) metav1.Time { return metav1.Time{Time: t.Truncate(time.Second)} }
