package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/buildbarn/config"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func files() *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: buildbarn.DefaultConfigMap, Namespace: "ns"}, Data: map[string]string{
			"common.libsonnet": "{}", "scheduler.jsonnet": "import 'common.libsonnet'", "storage.jsonnet": "{ a: 1 }",
			"frontend.jsonnet": "{ b: 1 }", "browser.jsonnet": "{ c: 1 }",
			"worker-ubuntu22-04.jsonnet": "{ d: 1 }", "runner-ubuntu22-04.jsonnet": "{ e: 1 }",
		},
	}
}

func newPartOf(kind string) buildbarn.Part {
	m := metav1.ObjectMeta{Name: "x", Namespace: "ns", UID: "u", Generation: 1, Finalizers: []string{buildbarn.Finalizer}}
	switch kind {
	case "scheduler":
		return &buildbarn.BuildbarnScheduler{ObjectMeta: m}
	case "worker":
		return &buildbarn.BuildbarnWorker{ObjectMeta: m}
	case "storage":
		return &buildbarn.BuildbarnStorage{ObjectMeta: m}
	case "frontend":
		return &buildbarn.BuildbarnFrontend{ObjectMeta: m}
	}
	return &buildbarn.BuildbarnBrowser{ObjectMeta: m}
}

var components = []string{"scheduler", "worker", "storage", "frontend", "browser"}

// world applies plans as the API server and the controllers of Deployments and StatefulSets would.
type world struct{ Observed }

func (w *world) put(o client.Object) {
	switch o := o.DeepCopyObject().(type) {
	case *appsv1.Deployment:
		w.Deployment = o
	case *appsv1.StatefulSet:
		w.StatefulSet = o
	case *corev1.Service:
		w.Service = o
	case *networkingv1.Ingress:
		w.Ingress = o
	case *corev1.ConfigMap:
		w.Copies = append(w.Copies, o)
	}
}

func (w *world) apply(a Actions) {
	for _, o := range append(a.Create, a.Update...) {
		w.put(o)
	}
	for _, o := range a.Delete {
		switch o.(type) {
		case *networkingv1.Ingress:
			w.Ingress = nil
		case *corev1.ConfigMap:
			w.Copies = slices.DeleteFunc(w.Copies, func(c *corev1.ConfigMap) bool { return c.Name == o.GetName() })
		}
	}
	if d := w.Deployment; d != nil {
		n := *d.Spec.Replicas
		d.Status = appsv1.DeploymentStatus{Replicas: n, ReadyReplicas: n, UpdatedReplicas: n}
	}
	if s := w.StatefulSet; s != nil {
		n := *s.Spec.Replicas
		s.Status = appsv1.StatefulSetStatus{Replicas: n, ReadyReplicas: n, UpdatedReplicas: n}
	}
	next := w.Part.DeepCopyObject().(buildbarn.Part)
	*next.Observed() = a.Status
	w.Part = next
}

// settle applies plans until no write is left, and returns the number of writes by kind.
func (w *world) settle(t require.TestingT) map[string]int {
	writes := map[string]int{}
	for range 5 {
		a := Plan(w.checked(), now)
		for _, list := range [][]client.Object{a.Create, a.Update, a.Delete} {
			for _, o := range list {
				writes[kindName(o)]++
			}
		}
		w.apply(a)
		if len(a.Create)+len(a.Update)+len(a.Delete) == 0 {
			last := Plan(w.checked(), now)
			require.Empty(t, last.Create)
			require.Empty(t, last.Update)
			require.Empty(t, last.Events)
			require.Equal(t, *w.Part.Observed(), last.Status, "the status does not change either")
			return writes
		}
	}
	require.FailNow(t, "it does not settle")
	return nil
}

// checked observes a verdict as package check would give it on files() and its changes.
func (w *world) checked() Observed {
	o := w.Observed
	if o.Source != nil {
		o.Files = config.Used(o.Source.Data, config.Mains(o.Part.Component(), instance(defaulted(o.Part))))
		for name, text := range o.Files {
			if strings.Contains(text, config.Common) {
				o.Files[config.Common] = o.Source.Data[config.Common]
			}
			if !strings.HasSuffix(text, "}") && !strings.Contains(text, config.Common) {
				o.Problem = name + ": Unexpected end of file"
			}
		}
	}
	return o
}

func newWorld(kind string) *world { return &world{Observed{Part: newPartOf(kind), Source: files()}} }

func conditionOf(p buildbarn.Part, kind string) metav1.Condition {
	if c := meta.FindStatusCondition(p.Observed().Conditions, kind); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func child(w *world) client.Object {
	if w.StatefulSet != nil {
		return w.StatefulSet
	}
	return w.Deployment
}

func ports(s *corev1.Service) (out []string) {
	for _, p := range s.Spec.Ports {
		out = append(out, fmt.Sprintf("%d %s", p.Port, p.Name))
	}
	return out
}

func mounted(c corev1.Container) (out []string) {
	for _, m := range c.VolumeMounts {
		out = append(out, m.Name)
	}
	return out
}
