package agent

import (
	"cmp"
	"fmt"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	kubelet "k8s.io/kubelet/config/v1beta1"

	"github.com/coracle-dev/coracle/pkg/node/images"
	"github.com/coracle-dev/coracle/pkg/node/runtime/crilog"
)

// kubeletConfiguration returns the fields of the kubelet's configuration (v1beta1) that the agent honours. The type
// itself would add all others with their zero values.
func (a *Agent) kubeletConfiguration() map[string]any {
	seconds := func(d time.Duration) string { return d.String() }
	enabled := func(is bool) map[string]any { return map[string]any{"enabled": is} }
	r := a.c.Reserved
	hard := map[string]string{}
	for signal, t := range a.c.Eviction.Thresholds {
		if hard[string(signal)] = resource.NewQuantity(t.Amount, resource.BinarySI).String(); t.Percent > 0 {
			hard[string(signal)] = strconv.FormatFloat(t.Percent, 'g', -1, 64) + "%"
		}
	}
	address, _, _ := net.SplitHostPort(a.c.ListenAddress)
	address = cmp.Or(address, "0.0.0.0")
	a.mu.Lock()
	port := a.port
	a.mu.Unlock()
	out := map[string]any{
		"kind": "KubeletConfiguration", "apiVersion": kubelet.SchemeGroupVersion.String(),
		"enableServer": true, "address": address, "port": port, "readOnlyPort": 0,
		"authentication": map[string]any{"anonymous": enabled(false), "webhook": enabled(true)},
		"authorization":  map[string]any{"mode": "Webhook"},
		"podLogsDir":     a.c.LogDir, "staticPodPath": a.c.ManifestDir,
		"clusterDNS": a.c.ClusterDNS, "clusterDomain": a.c.ClusterDomain, "resolvConf": a.c.ResolvConf,
		"cgroupRoot": a.c.CgroupRoot, "maxPods": a.c.MaxPods, "allowedUnsafeSysctls": a.c.AllowedUnsafeSysctls,
		"registerNode": true, "registerWithTaints": a.c.Taints,
		"nodeLeaseDurationSeconds": leaseSeconds, "nodeStatusReportFrequency": seconds(statusPeriod),
		"evictionHard": hard, "evictionPressureTransitionPeriod": seconds(a.c.Eviction.Transition),
		"imageGCHighThresholdPercent": a.c.ImageGCHigh, "imageGCLowThresholdPercent": a.c.ImageGCLow,
		"imageMinimumGCAge": seconds(images.KeepTime), "serializeImagePulls": false,
		"maxParallelImagePulls": images.PullsAtOnce,
		"containerLogMaxSize":   resource.NewQuantity(crilog.MaxSize, resource.BinarySI).String(),
		"containerLogMaxFiles":  crilog.MaxFiles,
	}
	if r.PIDs > 0 { // the zero value reserves nothing
		out["kubeReserved"] = map[string]string{
			"cpu": fmt.Sprintf("%dm", r.MilliCPU), "pid": strconv.FormatInt(r.PIDs, 10),
			"memory": resource.NewQuantity(r.MemoryOf(a.machine.memory), resource.BinarySI).String(),
		}
	}
	var periods []kubelet.ShutdownGracePeriodByPodPriority
	for _, p := range a.c.Shutdown {
		periods = append(periods, kubelet.ShutdownGracePeriodByPodPriority{
			Priority: p.Priority, ShutdownGracePeriodSeconds: int64(p.Period.Seconds()),
		})
	}
	if len(periods) > 0 {
		out["shutdownGracePeriodByPodPriority"] = periods
	}
	return out
}
