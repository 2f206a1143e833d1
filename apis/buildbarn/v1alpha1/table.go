package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coracle-dev/coracle/apis/internal/common"
)

// Column is a column of kubectl get, for Coracle's API server and for generated CustomResourceDefinitions.
type Column struct {
	metav1.TableColumnDefinition
	// Path is the JSON path of the value.
	Path string
}

func column(name, kind, path, description string, priority int32) Column {
	return Column{metav1.TableColumnDefinition{Name: name, Type: kind, Description: description, Priority: priority}, path}
}

// Printed returns the columns of parts or farms except the name. Columns with priority 1 are shown only with -o
// wide. A part's image and hash are those of its pods.
func Printed(part bool) []Column {
	list := []Column{
		column("State", "string", ".status.state", "Ready, NotReady or NotFound", 0),
		column("Replicas", "integer", ".status.replicas", "Number of pods", 0),
		column("Ready", "integer", ".status.readyReplicas", "Number of pods that are ready", 0),
		column("Age", "date", ".metadata.creationTimestamp", "Time since its creation", 0),
	}
	if part {
		list = append(list, column("Image", "string", ".spec.image", "The image of the program", 1),
			column("Config", "string", ".status.configHash", "The hash of the configuration of the pods", 1))
	}
	return list
}

func columns(part bool) []metav1.TableColumnDefinition {
	out := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
	}
	for _, c := range Printed(part) {
		d := c.TableColumnDefinition
		if d.Type == "date" {
			d.Type = "string" // Coracle's API server prints the age as text
		}
		out = append(out, d)
	}
	return out
}

// Columns returns the columns of parts.
func Columns() []metav1.TableColumnDefinition { return columns(true) }

// FarmColumns returns the columns of farms.
func FarmColumns() []metav1.TableColumnDefinition { return columns(false) }

// Cells returns a part's values for Columns.
func Cells[P Part](p P, now time.Time) []any {
	s := p.Observed()
	return []any{
		p.GetName(), string(s.State), int64(s.Replicas), int64(s.ReadyReplicas),
		common.Age(p.GetCreationTimestamp().Time, now), p.Pods().Image, s.ConfigHash,
	}
}

// FarmCells returns a farm's values for FarmColumns.
func FarmCells(b *Buildbarn, now time.Time) []any {
	return []any{
		b.Name, string(b.Status.State), int64(b.Status.Replicas), int64(b.Status.ReadyReplicas),
		common.Age(b.CreationTimestamp.Time, now),
	}
}
