package registry

import (
	"errors"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingvalidation "k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/coracle-dev/coracle/pkg/kind"
	"github.com/coracle-dev/coracle/pkg/state/cache"
)

var scaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

func (c *call) scaleOf(o client.Object) (*autoscalingv1.Scale, error) {
	sub := c.Resource.Subresource("scale")
	if sub == nil || sub.Scale == nil {
		return nil, c.noSubresource()
	}
	want, have, selector, err := readScale(sub.Scale, o)
	if err != nil {
		return nil, err
	}
	s := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(),
			ResourceVersion: o.GetResourceVersion(), CreationTimestamp: o.GetCreationTimestamp(),
		},
		Status: autoscalingv1.ScaleStatus{Replicas: have, Selector: selector},
	}
	if want != nil {
		s.Spec.Replicas = *want
	}
	s.SetGroupVersionKind(scaleKind)
	return s, nil
}

func readScale(s *kind.Scale, o client.Object) (want *int32, have int32, selector string, err error) {
	if s.Read != nil {
		return s.Read(o)
	}
	want, have, labels := s.Get(o)
	parsed, err := metav1.LabelSelectorAsSelector(labels)
	if err != nil {
		return nil, 0, "", apierrors.NewBadRequest(err.Error())
	}
	return want, have, parsed.String(), nil
}

func (c *call) getScale(e *cache.Entry, s *kind.Scale) (Result, error) {
	e, err := As(c.Resource, e)
	if err != nil {
		return Result{}, err
	}
	scale, err := c.scaleOf(e.Object)
	if err != nil {
		return Result{}, err
	}
	if s.Missing != "" {
		if want, _, _, err := readScale(s, e.Object); err == nil && want == nil {
			return Result{}, apierrors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist", s.Missing))
		}
	}
	return Result{Object: scale}, nil
}

func (c *call) updateScale(obj runtime.Object, o metav1.UpdateOptions) (Result, error) {
	in, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return Result{}, apierrors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %v", obj))
	}
	if err := c.checkName(in); err != nil {
		return Result{}, err
	}
	return c.rescale(o, false,
		c.tracking(o.FieldManager, func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error) { return in.DeepCopy(), nil }))
}

type changeScale = func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error)

func (c *call) scaleManager() (*managedfields.FieldManager, error) {
	as := oneVersion{gvk: scaleKind, make: func() runtime.Object { return &autoscalingv1.Scale{} }}
	// client-go's schema does not have scales
	return c.managers.get(managerKey{c.Resource, "scale"}, as, scaleKind, false, nil)
}

// tracking wraps a change other than an apply so that it records its field manager, if the object has managed fields.
func (c *call) tracking(manager string, change changeScale) changeScale {
	return func(before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		after, err := change(before)
		if err != nil || len(before.ManagedFields) == 0 {
			return after, err
		}
		f, err := c.scaleManager()
		if err != nil {
			return nil, err
		}
		after.SetGroupVersionKind(scaleKind)
		out, ok := f.UpdateNoErrors(before, after, c.manager(manager)).(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewInternalError(errors.New("the scale's type changed while its managed fields were recorded"))
		}
		return out, nil
	}
}

func (c *call) applyScale(data []byte, o *metav1.PatchOptions, update metav1.UpdateOptions) (Result, error) {
	f, err := c.scaleManager()
	if err != nil {
		return Result{}, err
	}
	config, err := c.configuration(data, o.FieldValidation)
	if err != nil {
		return Result{}, err
	}
	return c.rescale(update, true, func(before *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		obj, err := applyTo(f, before, config, o)
		if err != nil {
			return nil, err
		}
		out, ok := obj.(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewInternalError(fmt.Errorf("apply returned a %T instead of a scale", obj))
		}
		if err := c.checkName(out); err != nil {
			return nil, err
		}
		return out, c.sameRevision(out, before)
	})
}

// rescale computes a new scale from the current one and writes it to the object. It maps the managed fields of the
// replicas between the two.
func (c *call) rescale(o metav1.UpdateOptions, force bool, change changeScale) (Result, error) {
	sub := c.Resource.Subresource("scale")
	if sub == nil || sub.Scale == nil {
		return Result{}, c.noSubresource()
	}
	w := &write{call: c, strategy: c.strategy(), options: o, force: force, applied: true}
	version := c.Resource.GroupVersion()
	paths := sub.Scale.Paths
	if paths == nil {
		paths = managedfields.ResourcePathMappings{version.String(): fieldpath.MakePathOrDie("spec", "replicas")}
	}
	w.change = func(old *cache.Entry) (client.Object, error) {
		old, err := As(c.Resource, old)
		if err != nil {
			return nil, err
		}
		before, err := c.scaleOf(old.Object)
		if err != nil {
			return nil, err
		}
		handler := managedfields.NewScaleHandler(old.Object.GetManagedFields(), version, paths)
		if before.ManagedFields, err = handler.ToSubresource(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		scale, err := change(before.DeepCopy())
		if err != nil {
			return nil, err
		}
		internal, was := &autoscaling.Scale{}, &autoscaling.Scale{}
		if err := errors.Join(legacyscheme.Scheme.Convert(scale, internal, nil),
			legacyscheme.Scheme.Convert(before, was, nil)); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		// As upstream, admission sees the scale.
		if err := c.admit(internal, was, admission.Update, &o); err != nil {
			return nil, err
		}
		if errs := autoscalingvalidation.ValidateScale(internal); len(errs) > 0 {
			return nil, apierrors.NewInvalid(autoscaling.Kind("Scale"), c.Name, errs)
		}
		w.scale, w.was = internal, was
		if scale.UID != "" && scale.UID != before.UID {
			return nil, uidMismatch(schema.GroupResource{Group: c.gr().Group, Resource: c.gr().Resource + "/scale"}, c.Name,
				scale.UID, before.UID)
		}
		out := old.Object.DeepCopyObject().(client.Object)
		if sub.Scale.Write == nil {
			sub.Scale.Set(out, internal.Spec.Replicas)
		} else if err := sub.Scale.Write(out, internal.Spec.Replicas); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if scale.ResourceVersion != "" || c.strategy().AllowUnconditionalUpdate(c.ctx) { // otherwise the object's stays
			out.SetResourceVersion(scale.ResourceVersion)
		}
		entries, err := handler.ToParent(scale.ManagedFields)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		out.SetManagedFields(entries)
		wholeSeconds(out)
		return out, nil
	}
	res, err := w.run()
	if err != nil {
		return Result{}, err
	}
	full, err := res.Value()
	if err != nil {
		return Result{}, err
	}
	if o, ok := full.(client.Object); ok && !c.Resource.Serves(o) && c.Resource.PerVersion {
		if full, err = c.Resource.From(o); err != nil {
			return Result{}, apierrors.NewInternalError(err)
		}
	}
	scale, err := c.scaleOf(full.(client.Object))
	return Result{Object: scale}, err
}
