package buildbarn

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
)

type part[T any] interface {
	*T
	buildbarn.Part
}

func kinds() []own.Kind {
	return []own.Kind{
		partKind("BuildbarnScheduler", "bbscheduler", buildbarn.DefaultScheduler, buildbarn.ValidateScheduler,
			func() client.ObjectList { return &buildbarn.BuildbarnSchedulerList{} }),
		partKind("BuildbarnWorker", "bbworker", buildbarn.DefaultWorker, buildbarn.ValidateWorker,
			func() client.ObjectList { return &buildbarn.BuildbarnWorkerList{} }),
		partKind("BuildbarnStorage", "bbstorage", buildbarn.DefaultStorage, buildbarn.ValidateStorage,
			func() client.ObjectList { return &buildbarn.BuildbarnStorageList{} }),
		partKind("BuildbarnFrontend", "bbfrontend", buildbarn.DefaultFrontend, buildbarn.ValidateFrontend,
			func() client.ObjectList { return &buildbarn.BuildbarnFrontendList{} }),
		partKind("BuildbarnBrowser", "bbbrowser", buildbarn.DefaultBrowser, buildbarn.ValidateBrowser,
			func() client.ObjectList { return &buildbarn.BuildbarnBrowserList{} }),
		own.Declare(own.Definition[*buildbarn.Buildbarn]{
			Kind: buildbarn.GroupVersion.WithKind("Buildbarn"), Plural: "buildbarns", ShortNames: []string{"bb"},
			Categories: []string{"coracle"},
			New:        func() *buildbarn.Buildbarn { return &buildbarn.Buildbarn{} },
			NewList:    func() client.ObjectList { return &buildbarn.BuildbarnList{} },
			Default:    buildbarn.DefaultFarm, Validate: buildbarn.ValidateFarm, Source: buildbarn.FarmSource,
			Columns: columns(func(b *buildbarn.Buildbarn) (buildbarn.State, int32, int32) {
				return b.Status.State, b.Status.Replicas, b.Status.ReadyReplicas
			}),
			View: true, Edit: true,
		}, func(b *buildbarn.Buildbarn) *buildbarn.BuildbarnStatus { return &b.Status }),
	}
}

// columns returns the columns of parts and farms.
func columns[P client.Object](status func(P) (state buildbarn.State, replicas, ready int32)) []own.Column[P] {
	return []own.Column[P]{
		{
			Name: "State", About: "Ready, NotReady or NotFound", Path: ".status.state",
			Cell: func(o P) any { state, _, _ := status(o); return string(state) },
		},
		{
			Name: "Replicas", About: "Number of pods", Type: "integer", Path: ".status.replicas",
			Cell: func(o P) any { _, replicas, _ := status(o); return int64(replicas) },
		},
		{
			Name: "Ready", About: "Number of pods that are ready", Type: "integer", Path: ".status.readyReplicas",
			Cell: func(o P) any { _, _, ready := status(o); return int64(ready) },
		},
		own.AgeColumn[P](),
	}
}

// partKind returns the kind of a part. The part has a scale subresource, and gets its finalizer when it is created.
func partKind[T any, P part[T]](name, short string, defaults func(P), validate func(P) field.ErrorList,
	list func() client.ObjectList) own.Kind {
	source := buildbarn.PartsSource
	if name == "BuildbarnScheduler" {
		source = buildbarn.Source // the types that all parts share; one row reads them, so each source is read once
	}
	k := own.Declare(own.Definition[P]{
		Kind: buildbarn.GroupVersion.WithKind(name), Plural: strings.ToLower(name) + "s", ShortNames: []string{short},
		// A category "buildbarn" would hide the kind: kubectl refuses names after a category.
		Categories: []string{"coracle"},
		New:        func() P { return P(new(T)) }, NewList: list, Default: defaults, Validate: validate,
		Prepare: func(p, old P) {
			if old == nil && !slices.Contains(p.GetFinalizers(), buildbarn.Finalizer) {
				p.SetFinalizers(append(p.GetFinalizers(), buildbarn.Finalizer))
			}
		},
		Source: source, View: true, Edit: true,
		Columns: append(columns(func(p P) (buildbarn.State, int32, int32) {
			s := p.Observed()
			return s.State, s.Replicas, s.ReadyReplicas
		}), own.Column[P]{
			Name: "Image", About: "The image of the program", Wide: true, Path: ".spec.image",
			Cell: func(p P) any { return p.Pods().Image },
		}, own.Column[P]{
			Name: "Config", About: "The hash of the configuration of the pods", Wide: true, Path: ".status.configHash",
			Cell: func(p P) any { return p.Observed().ConfigHash },
		}),
	}, func(p P) *buildbarn.PartStatus { return p.Observed() })
	k.Row.Subresources = append(k.Row.Subresources, own.Scale(func(p P) (**int32, int32, *metav1.LabelSelector) {
		return &p.Pods().Replicas, p.Observed().Replicas, &metav1.LabelSelector{MatchLabels: buildbarn.Labels(p)}
	}))
	return k
}
