package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/engine"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/check/protocol"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/fit"
)

const maxDoubts = 5

// observeNamed reads the Services that the part's files name, and their BuildbarnStorages.
func (r *reconciler) observeNamed(ctx context.Context, p buildbarn.Part, o *Observed) error {
	for _, name := range fit.Names(o.Facts, p.GetNamespace()) {
		s, err := engine.Find[corev1.Service](ctx, r.Cache, p.GetNamespace(), name)
		if err != nil {
			return err
		}
		if s == nil {
			continue
		}
		if o.Named == nil {
			o.Named, o.Storage = map[string]*corev1.Service{}, map[string]int32{}
		}
		o.Named[name] = s
		storage, err := engine.Find[buildbarn.BuildbarnStorage](ctx, r.Cache, p.GetNamespace(), name)
		if err != nil {
			return err
		}
		if storage != nil {
			buildbarn.DefaultPart(storage)
			o.Storage[name] = *storage.Spec.Replicas
		}
	}
	return nil
}

// maxFrontends bounds the frontends of a namespace that are compared with its workers. If there are more, none is.
const maxFrontends = 10

// observeFarm reads the facts of schedulers and frontends, for workers. It starts checks of files without a verdict,
// such as after a restart.
func (r *reconciler) observeFarm(ctx context.Context, p buildbarn.Part, o *Observed) error {
	if p.Component() != "worker" || !said(o.Facts) {
		return nil
	}
	facts := func(of buildbarn.Part) *protocol.Facts {
		f, awaited := r.facts(ctx, of, engine.RequestFor(p.GetNamespace(), p.GetName()))
		o.Awaited = o.Awaited || awaited
		return f
	}
	o.Schedulers, o.Frontends = map[string]*protocol.Facts{}, map[string]*protocol.Facts{}
	for name := range o.Named {
		s, err := engine.Find[buildbarn.BuildbarnScheduler](ctx, r.Cache, p.GetNamespace(), name)
		if err != nil {
			return err
		}
		if s != nil {
			o.Schedulers[name] = facts(s)
		}
	}
	var frontends buildbarn.BuildbarnFrontendList
	if err := r.Cache.List(ctx, &frontends, client.InNamespace(p.GetNamespace())); err != nil {
		return err
	}
	for i := range frontends.Items {
		f := &frontends.Items[i]
		o.Frontends[f.Name] = nil
		if len(frontends.Items) <= maxFrontends {
			o.Frontends[f.Name] = facts(f)
		}
	}
	return nil
}

// said reports whether the facts of all files are known.
func said(facts []*protocol.Facts) bool { return len(facts) > 0 && !slices.Contains(facts, nil) }

// facts returns the facts of a part with one program, or nil if they are not known. awaited means that the file is
// being checked; asker is enqueued when that check ends.
func (r *reconciler) facts(ctx context.Context, p buildbarn.Part,
	asker engine.Request) (f *protocol.Facts, awaited bool) {
	p = defaulted(p)
	source, err := engine.Find[corev1.ConfigMap](ctx, r.Cache, p.GetNamespace(), p.Pods().ConfigMapName)
	if err != nil || source == nil {
		return nil, false
	}
	want := requestOf(source, p)
	v, known, err := r.checks.checker.Known(want)
	if err == nil && !known {
		_ = r.checks.ask(asker, want, source.ResourceVersion) // a failed check is retried later
		return nil, true
	}
	if err != nil || len(v.Facts) != 1 {
		return nil, false
	}
	return v.Facts[0], false
}

// farmMatters reports whether a change of a scheduler or frontend may change the facts of its files.
func farmMatters(was, is client.Object) bool {
	a, b := was.(buildbarn.Part), is.(buildbarn.Part)
	return engine.SpecChanged(was, is) || a.Observed().ConfigHash != b.Observed().ConfigHash
}

// neighbours maps a Service or a part to all parts of this kind in its namespace, whose files may name it.
func (k part) neighbours(ctx context.Context, env engine.Env, o client.Object) []engine.Request {
	list := k.list()
	if env.Cache.List(ctx, list, client.InNamespace(o.GetNamespace())) != nil {
		return nil // the cache is stopping
	}
	return engine.RequestsIn(list, nil)
}

func serviceMatters(was, is client.Object) bool {
	a, b := was.(*corev1.Service), is.(*corev1.Service)
	return !equality.Semantic.DeepEqual(a.Spec, b.Spec) ||
		!equality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences)
}

// compare compares the configuration with the farm. It returns a certain problem, and records the warnings.
func (p *plan) compare() (problem string) {
	a := fit.Around{
		Namespace: p.part.GetNamespace(), Component: p.part.Component(), Services: p.o.Named, Storage: p.o.Storage,
		Schedulers: p.o.Schedulers,
		Frontends:  p.o.Frontends,
	}
	if s := service(p.part, p.o.Part); s != nil {
		a.Ports = s.Spec.Ports
	}
	if s, ok := p.part.(*buildbarn.BuildbarnStorage); ok {
		a.Claims = p.claimed(s)
	}
	if w, ok := p.part.(*buildbarn.BuildbarnWorker); ok {
		a.Empty = w.Spec.Scale != nil && w.Spec.Scale.Min == 0
	}
	problem, p.doubts = fit.Compare(p.o.Facts, a)
	p.compared = problem == ""
	return problem
}

// claimed returns the largest requested or present size of each claim, since it may be about to grow.
func (p *plan) claimed(s *buildbarn.BuildbarnStorage) map[string]int64 {
	claims := claimTemplates(s)
	if p.o.StatefulSet != nil {
		claims = append(claims[:len(claims):len(claims)], p.o.StatefulSet.Spec.VolumeClaimTemplates...)
	}
	for _, c := range p.o.Claims {
		for name := range fit.Claims() {
			if strings.HasPrefix(c.Name, name+"-"+s.Name+"-") {
				one := *c
				one.Name = name
				claims = append(claims[:len(claims):len(claims)], one)
			}
		}
	}
	sizes := map[string]int64{}
	for _, c := range claims {
		mount, ok := fit.Claims()[c.Name]
		if !ok {
			continue
		}
		size, capacity := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
		sizes[mount] = max(sizes[mount], size.Value(), capacity.Value())
	}
	return sizes
}

// doubt sets the condition ConfigFits from the warnings. A new farm is incomplete at first, so the condition is first
// set when the part is ready.
func (p *plan) doubt() {
	switch {
	case !p.compared: // the pods keep the previous configuration
	case !said(p.o.Facts):
		p.forget(buildbarn.ConditionConfigFits)
	case p.o.Awaited:
		p.Again = cmp.Or(p.Again, refusedAgain)
	case p.Status.State != buildbarn.Ready &&
		meta.FindStatusCondition(p.Status.Conditions, buildbarn.ConditionConfigFits) == nil:
	case len(p.doubts) == 0:
		p.condition(buildbarn.ConditionConfigFits, metav1.ConditionTrue, "Fits", "")
	default:
		text := strings.Join(p.doubts[:min(len(p.doubts), maxDoubts)], "; ")
		if more := len(p.doubts) - maxDoubts; more > 0 {
			text += fmt.Sprintf("; and %d more", more)
		}
		p.condition(buildbarn.ConditionConfigFits, metav1.ConditionFalse, "Doubtful", text)
	}
}
