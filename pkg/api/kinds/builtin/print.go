package builtin

import (
	"context"
	"sync"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	autoscalingconversion "k8s.io/kubernetes/pkg/apis/autoscaling/v1"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/kind"
)

// upstreamColumns is built on first use: a server that prints no tables saves the memory.
var upstreamColumns = sync.OnceValue(func() *printers.HumanReadableGenerator {
	return printers.NewTableGenerator().With(printersinternal.AddHandlers)
})

// printer returns a Printer with upstream's columns.
func printer(r *kind.Resource) *kind.Printer {
	return &kind.Printer{Row: r, Print: func(o client.Object, headers bool) (*metav1.Table, error) {
		in, err := r.Internal(o)
		if err != nil {
			return nil, err
		}
		return upstreamColumns().GenerateTable(in, printers.GenerateOptions{Wide: true, NoHeaders: !headers})
	}}
}

type scalePrinter struct{}

func (scalePrinter) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	var in autoscaling.Scale
	if err := autoscalingconversion.Convert_v1_Scale_To_autoscaling_Scale(obj.(*autoscalingv1.Scale), &in, nil); err !=
		nil {
		return nil, err
	}
	o, _ := options.(*metav1.TableOptions)
	return upstreamColumns().GenerateTable(&in, printers.GenerateOptions{Wide: true, NoHeaders: o != nil && o.NoHeaders})
}

// namesOnly prints name and creation time, as upstream does for kinds without columns.
func namesOnly(gr schema.GroupResource) rest.TableConvertor { return rest.NewDefaultTableConvertor(gr) }

// addressPrinter drops the age cell of an IPAddress, for which upstream has no column.
func addressPrinter(r *kind.Resource) *kind.Printer {
	all := printer(r)
	return &kind.Printer{Row: r, Print: func(o client.Object, headers bool) (*metav1.Table, error) {
		t, err := all.Print(o, headers)
		if err != nil {
			return nil, err
		}
		for i := range t.Rows {
			t.Rows[i].Cells = t.Rows[i].Cells[:min(2, len(t.Rows[i].Cells))]
		}
		return t, nil
	}}
}
