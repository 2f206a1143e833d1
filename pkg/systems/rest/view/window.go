package view

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/systems/rest/wire"
)

func windows(list []kontrol.SyncWindow) (out []wire.SyncWindow) {
	for _, w := range list {
		out = append(out, wire.SyncWindow{
			Kind:     string(w.Kind),
			Schedule: w.Schedule,
			Duration: w.Duration.Duration.String(),
			TimeZone: w.TimeZone,
		})
	}
	return out
}

func newWindows(list []wire.SyncWindow) (out []kontrol.SyncWindow, err error) {
	for i, w := range list {
		d, err := time.ParseDuration(w.Duration)
		if err != nil {
			return nil, fmt.Errorf("windows[%d].duration %.64q is not a duration such as 8h or 90m", i, w.Duration)
		}
		out = append(out, kontrol.SyncWindow{
			Kind:     kontrol.WindowKind(w.Kind),
			Schedule: w.Schedule,
			Duration: metav1.Duration{Duration: d},
			TimeZone: w.TimeZone,
		})
	}
	return out, nil
}
