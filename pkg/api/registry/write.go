package registry

import (
	"bytes"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/state/cache"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// write updates one object: it makes the new object from the cached one and writes it if the stored object has not
// changed. On a conflict it starts over with the newer object, unless the caller's precondition or context forbids
// it.
type write struct {
	*call
	strategy rest.RESTUpdateStrategy
	options  metav1.UpdateOptions
	upsert   bool // create the object if it does not exist
	internal bool // a write by the server itself: no strategy, no admission
	force    bool // ignore the new object's resourceVersion
	applied  bool // change records managed fields itself
	// scale and was are what change has passed through mutating admission in place of the whole objects, or nil.
	scale, was runtime.Object
	// change returns the new object, in the requested version; the write may modify it. old is nil if there is none.
	change func(old *cache.Entry) (client.Object, error)
}

func (w *write) run() (res Result, err error) {
	err = w.retry(func(e *cache.Entry) (err error) {
		res, err = w.once(e)
		return err
	})
	return res, err
}

// retry calls once with the cached object, which is nil if there is none, until it succeeds. It calls it again if
// another write came first, or if the cache was behind, which may have caused the error. Errors are Status errors.
func (c *call) retry(once func(e *cache.Entry) error) error {
	fresh := c.dry
	if fresh {
		if _, err := c.sync(c.ctx); err != nil {
			return err
		}
	}
	for {
		e := c.entry()
		err := once(e)
		if err == nil {
			return nil
		}
		raced := lostRace(err)
		if c.ctx.Err() != nil || !raced && fresh {
			return status(err, c.gr(), c.Name)
		}
		if _, syncErr := c.sync(c.ctx); syncErr != nil {
			return syncErr
		}
		fresh = true
		if !raced && c.entry() == e {
			return status(err, c.gr(), c.Name)
		}
	}
}

func (w *write) once(e *cache.Entry) (Result, error) {
	if e == nil && !w.upsert {
		return Result{}, w.notFound()
	}
	if e == nil {
		if err := w.unreadable(); err != nil {
			return Result{}, err
		}
	}
	obj, err := w.change(e)
	if err != nil {
		return Result{}, err
	}
	if w.Resource.Default != nil && !w.applied { // apply sets defaults if it changes anything
		w.Resource.Default(obj)
	}
	if e == nil {
		return w.createMissing(obj)
	}
	if err := w.precondition(obj, e); err != nil {
		return Result{}, err
	}
	if w.Subresource != "status" && !w.internal {
		if err := w.checkCost(obj, e.Object); err != nil {
			return Result{}, err
		}
	}
	in, err := w.Resource.Internal(obj)
	if err != nil {
		return Result{}, apierrors.NewBadRequest(err.Error())
	}
	if !w.applied && !w.internal {
		if err := w.manage(w.strategy, e, in, w.options.FieldManager); err != nil {
			return Result{}, err
		}
	}
	if !w.internal {
		old, err := w.call.internal(e)
		if err != nil {
			return Result{}, err
		}
		if w.scale == nil {
			err = w.admit(in, old, admission.Update, &w.options)
		}
		if err != nil {
			return Result{}, err
		}
		dedupOwners(w.ctx, in, true)
		if err := w.complete(in, old); err != nil {
			return Result{}, err
		}
		if err := w.beforeUpdate(w.strategy, in, old); err != nil {
			return Result{}, err
		}
		if in, err = settleTimes(w.ctx, in, old); err != nil {
			return Result{}, err
		}
		if err := w.checkEscalation(in, old); err != nil {
			return Result{}, err
		}
		now, was := in, old
		if w.scale != nil {
			now, was = w.scale, w.was
		}
		if err := w.validate(now, was, w.Name, admission.Update, &w.options); err != nil {
			return Result{}, err
		}
		charged, err := w.charge(in, old, w.Name, admission.Update, &w.options, e.Revision)
		if err != nil {
			return Result{}, err
		}
		defer charged.release()
	}
	return w.commit(in, e)
}

// commit writes the new object, or deletes it if the update removed the finalizer that its deletion waited for.
func (w *write) commit(in runtime.Object, e *cache.Entry) (Result, error) {
	out, value, err := w.encode(in)
	if err != nil {
		return Result{}, err
	}
	if !w.applied {
		if out, value, err = w.encodeStorable(out, value); err != nil {
			return Result{}, err
		}
	}
	if lastFinalizerRemoved(out, e.Object) {
		out.SetResourceVersion(e.Object.GetResourceVersion())
		res := Result{Object: w.shown(out)}
		if w.dry {
			return res, nil
		}
		rev, err := w.commitOp(store.Op{Action: store.Remove, Key: e.Key, Revision: e.Revision}, nil, e.Object)
		if err != nil {
			return Result{}, err
		}
		return res, w.waitFor(w.ctx, rev)
	}
	// Write an object that is stored in another version even if it is equal: this migrates stored versions.
	if e.MayBe(value) && w.row.Serves(e.Object) {
		before, err := w.row.Encode(e.Object)
		if err != nil {
			return Result{}, apierrors.NewInternalError(err)
		}
		if bytes.Equal(before, value) {
			return w.show(e) // unchanged
		}
	}
	if w.dry {
		out.SetResourceVersion(e.Object.GetResourceVersion())
		return Result{Object: w.shown(out)}, nil
	}
	defer w.cache.Offer(e.Key, value, out).Withdraw()
	rev, err := w.commitOp(store.Op{Key: e.Key, Value: value, Revision: e.Revision, TTL: w.ttl()}, out, e.Object)
	if err != nil {
		return Result{}, err
	}
	return w.answer(w.Name, rev, out)
}

// lastFinalizerRemoved reports whether an update removed the last finalizer of an object that is being deleted.
func lastFinalizerRemoved(now, was client.Object) bool {
	if len(now.GetFinalizers()) > 0 || was.GetDeletionTimestamp() == nil {
		return false
	}
	if grace := was.GetDeletionGracePeriodSeconds(); grace != nil && *grace != 0 {
		return false
	}
	return !hasSpecFinalizers(now)
}

func (w *write) createMissing(obj client.Object) (Result, error) {
	if uid := obj.GetUID(); uid != "" {
		if w.applied {
			return Result{}, apierrors.NewConflict(w.gr(), w.Name,
				fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
		}
		return Result{}, uidMismatch(w.gr(), w.Name, uid, "")
	}
	if err := w.allowed("create"); err != nil {
		return Result{}, err
	}
	obj.SetResourceVersion("")
	if obj.GetName() == "" {
		obj.SetName(w.Name)
	}
	res, err := w.create(obj, &metav1.CreateOptions{
		DryRun:          w.options.DryRun,
		FieldManager:    w.options.FieldManager,
		FieldValidation: w.options.FieldValidation,
	}, w.applied)
	if apierrors.IsAlreadyExists(err) {
		return Result{}, store.ErrExists // created concurrently: retry as an update
	}
	return res, err
}

func (w *write) precondition(obj client.Object, e *cache.Entry) error {
	// A patch may send another UID: then validation rejects the change.
	if uid := obj.GetUID(); uid != "" && uid != e.Object.GetUID() && w.verb != "patch" {
		return uidMismatch(w.gr(), w.Name, uid, e.Object.GetUID())
	}
	rv := obj.GetResourceVersion()
	if w.force || rv == "" || rv == "0" {
		if !w.force && !w.strategy.AllowUnconditionalUpdate(w.ctx) {
			// As upstream, the error has the resource in place of the kind.
			return apierrors.NewInvalid(schema.GroupKind{Group: w.gr().Group, Kind: w.gr().Resource}, w.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
		}
		obj.SetResourceVersion(e.Object.GetResourceVersion())
		return nil
	}
	n, err := strconv.ParseUint(rv, 10, 64)
	if err != nil {
		return apierrors.NewInvalid(schema.GroupKind{Group: w.Resource.Group, Kind: w.Resource.Kind}, w.Name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), rv, "must be a number returned by the server")})
	}
	if int64(n) != e.Revision {
		return apierrors.NewConflict(w.gr(), w.Name, errModified)
	}
	return nil
}

func uidMismatch(gr schema.GroupResource, name string, want, have types.UID) error {
	return apierrors.NewConflict(gr, name,
		fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", want, have))
}
