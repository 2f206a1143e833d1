package v1alpha1

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Columns returns the columns of kubectl get workers. Columns with priority 1 are shown only with -o wide.
func Columns() []metav1.TableColumnDefinition {
	name := metav1.ObjectMeta{}.SwaggerDoc()["name"]
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: name},
		{Name: "Ready", Type: "string", Description: "The pods that are ready, of those asked for"},
		{Name: "Depth", Type: "integer", Description: "How many messages wait"},
		{Name: "In Flight", Type: "integer", Description: "How many messages are handled"},
		{Name: "Dead", Type: "integer", Description: "How many failed messages are kept"},
		{Name: "Delivery", Type: "string", Description: "AtMostOnce or AtLeastOnce"},
		{Name: "Age", Type: "string", Description: "Time since its creation"},
		{Name: "Mode", Type: "string", Priority: 1, Description: "Poll or Push"},
		{Name: "Program", Type: "string", Priority: 1, Description: "The image, or the built-in function"},
		{Name: "Scale", Type: "string", Priority: 1, Description: "The range of replicas"},
	}
}

// Cells returns a worker's values for Columns.
func Cells(w *Worker, now time.Time) []any {
	program, scale := w.Spec.Image, ""
	if w.Spec.Function != "" {
		program = "function " + string(w.Spec.Function)
	}
	if r := w.Spec.Scale; r != nil {
		scale = fmt.Sprintf("%d-%d", r.Min, r.Max)
	}
	return []any{
		w.Name, fmt.Sprintf("%d/%d", w.Status.ReadyReplicas, w.Status.DesiredReplicas), int64(w.Status.Depth),
		int64(w.Status.InFlight), int64(w.Status.Dead),
		string(w.Spec.Delivery.Promise), common.Age(w.CreationTimestamp.Time, now), string(w.Spec.Mode), program, scale,
	}
}
