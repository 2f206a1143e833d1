package buildbarn

import (
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	buildbarn "github.com/coracle-dev/coracle/apis/buildbarn/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/api/kinds/own"
	"github.com/coracle-dev/coracle/pkg/kind"
)

type part[T any] interface {
	*T
	buildbarn.Part
}

func kinds() []own.Kind {
	return []own.Kind{
		{
			Row: partRow("BuildbarnScheduler", "bbscheduler", buildbarn.DefaultScheduler, buildbarn.ValidateScheduler,
				func() client.ObjectList { return &buildbarn.BuildbarnSchedulerList{} }), Rights: buildbarn.SchedulerRights,
		},
		{
			Row: partRow("BuildbarnWorker", "bbworker", buildbarn.DefaultWorker, buildbarn.ValidateWorker,
				func() client.ObjectList { return &buildbarn.BuildbarnWorkerList{} }), Rights: buildbarn.WorkerRights,
		},
		{
			Row: partRow("BuildbarnStorage", "bbstorage", buildbarn.DefaultStorage, buildbarn.ValidateStorage,
				func() client.ObjectList { return &buildbarn.BuildbarnStorageList{} }), Rights: buildbarn.StorageRights,
		},
		{
			Row: partRow("BuildbarnFrontend", "bbfrontend", buildbarn.DefaultFrontend, buildbarn.ValidateFrontend,
				func() client.ObjectList { return &buildbarn.BuildbarnFrontendList{} }), Rights: buildbarn.FrontendRights,
		},
		{
			Row: partRow("BuildbarnBrowser", "bbbrowser", buildbarn.DefaultBrowser, buildbarn.ValidateBrowser,
				func() client.ObjectList { return &buildbarn.BuildbarnBrowserList{} }), Rights: buildbarn.BrowserRights,
		},
		{Row: own.Row(own.Definition[*buildbarn.Buildbarn]{
			Kind: buildbarn.GroupVersion.WithKind("Buildbarn"), Plural: "buildbarns", ShortNames: []string{"bb"},
			Categories: []string{"coracle"},
			New:        func() *buildbarn.Buildbarn { return &buildbarn.Buildbarn{} },
			NewList:    func() client.ObjectList { return &buildbarn.BuildbarnList{} },
			Default:    buildbarn.DefaultFarm, Validate: buildbarn.ValidateFarm,
			Columns: buildbarn.FarmColumns, Cells: buildbarn.FarmCells, Source: buildbarn.FarmSource,
		}, func(b *buildbarn.Buildbarn) *buildbarn.BuildbarnStatus { return &b.Status }), Rights: buildbarn.FarmRights},
	}
}

// partRow returns the row of a part. The part has a scale subresource, and gets its finalizer when it is created.
func partRow[T any, P part[T]](name, short string, defaults func(P), validate func(P) field.ErrorList,
	list func() client.ObjectList) *kind.Resource {
	source := buildbarn.PartsSource
	if name == "BuildbarnScheduler" {
		source = buildbarn.Source // the types that all parts share; one row reads them, so each source is read once
	}
	r := own.Row(own.Definition[P]{
		Kind: buildbarn.GroupVersion.WithKind(name), Plural: strings.ToLower(name) + "s", ShortNames: []string{short},
		// There is no category "buildbarn": kubectl would read "get buildbarn NAME" as the category and refuse the name.
		Categories: []string{"coracle"},
		New:        func() P { return P(new(T)) }, NewList: list, Default: defaults, Validate: validate,
		Prepare: func(p, old P) {
			if old == nil && !slices.Contains(p.GetFinalizers(), buildbarn.Finalizer) {
				p.SetFinalizers(append(p.GetFinalizers(), buildbarn.Finalizer))
			}
		},
		Columns: buildbarn.Columns, Cells: buildbarn.Cells[P], Source: source,
	}, func(p P) *buildbarn.PartStatus { return p.Observed() })
	r.Subresources = append(r.Subresources, own.Scale(func(p P) (**int32, int32, *metav1.LabelSelector) {
		return &p.Pods().Replicas, p.Observed().Replicas, &metav1.LabelSelector{MatchLabels: buildbarn.Labels(p)}
	}))
	return r
}

// Definitions returns CustomResourceDefinitions of Buildbarn's kinds for API servers other than Coracle's.
func Definitions() (list []*apiextensionsv1.CustomResourceDefinition) {
	for _, o := range kinds() {
		var columns []apiextensionsv1.CustomResourceColumnDefinition
		for _, c := range buildbarn.Printed(o.Row.Kind != "Buildbarn") {
			columns = append(columns, apiextensionsv1.CustomResourceColumnDefinition{
				Name:        c.Name,
				Type:        c.Type,
				Description: c.Description,
				Priority:    c.Priority,
				JSONPath:    c.Path,
			})
		}
		list = append(list, own.CustomResource(o.Row, columns, ".status.selector"))
	}
	return list
}
