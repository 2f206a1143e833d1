package pod

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/node/images"
	"github.com/coracle-dev/coracle/pkg/node/images/keyring"
	"github.com/coracle-dev/coracle/pkg/node/network"
	"github.com/coracle-dev/coracle/pkg/node/pod/static"
	"github.com/coracle-dev/coracle/pkg/node/runtime"
	"github.com/coracle-dev/coracle/pkg/node/volume"
)

// do executes an action. It returns nil, or why the action failed and when to retry it.
func (w *worker) do(ctx context.Context, p *corev1.Pod, b *op) *Failure {
	switch b.Kind {
	case SetupSandbox:
		defer w.m.gate.enter(ctx, stageSandbox)()
		return w.setupSandbox(ctx, p)
	case MountVolumes:
		return w.mountVolumes(ctx)
	case Start:
		return w.startContainer(ctx, p, b)
	case Kill:
		w.m.event(p, b.Target, corev1.EventTypeNormal, "Killing", b.Reason)
		return w.fail(b.Target, killFailed, w.stopContainer(ctx, p, b, b.ID), time.Second)
	case Allocate:
		return w.askForMore()
	case Resize:
		return w.resize(ctx)
	case Remove:
		return w.fail(b.Target, "RemoveContainerError", w.remove(ctx, p, b.ID), time.Second)
	case Release:
		defer w.m.gate.enter(ctx, stageRelease)()
		return w.release(ctx, p, b.Forget)
	case Delete:
		return w.fail(b.Target, "DeleteError", w.delete(ctx, p), time.Second)
	}
	return nil
}

// fail turns an error into a Failure. The delay begins with first and doubles with each failure, up to two minutes.
func (w *worker) fail(key, reason string, err error, first time.Duration) *Failure {
	if err == nil {
		return nil
	}
	w.mu.Lock()
	before := w.actions.failures[key]
	w.mu.Unlock()
	wait := min(max(2*before.wait, first), 2*time.Minute)
	return &Failure{Reason: reason, Message: err.Error(), Until: time.Now().Add(wait), wait: wait}
}

func (w *worker) setupSandbox(ctx context.Context, p *corev1.Pod) *Failure {
	handler, err := w.m.handler(ctx, p)
	if err == nil && ownUsers(p) {
		err = w.m.checkUsers(handler)
	}
	if err != nil {
		return w.sandboxFailed(ctx, p, err)
	}
	host, domain := hostnames(p, w.m.c.ClusterDomain)
	n := network.Pod{UID: string(p.UID), Namespace: p.Namespace, Name: p.Name, Hostname: host,
		HostNetwork: p.Spec.HostNetwork, HostIPC: p.Spec.HostIPC, OwnUsers: ownUsers(p)}
	_ = domain // only DNS serves it; as in the kubelet, the kernel's domain name stays unset
	if sc := p.Spec.SecurityContext; sc != nil && len(sc.Sysctls) > 0 {
		n.Sysctls = map[string]string{}
		for _, s := range sc.Sysctls {
			if !ofUsers(s.Name) { // each container sets its own user.* sysctls
				n.Sysctls[s.Name] = s.Value
			}
		}
	}
	if !p.Spec.HostNetwork {
		for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for _, c := range list {
				for _, port := range c.Ports {
					if port.HostPort > 0 {
						n.HostPorts = append(n.HostPorts, hostPort(port))
					}
				}
			}
		}
	}
	s, err := w.m.c.Network.Setup(ctx, n)
	if err != nil {
		return w.sandboxFailed(ctx, p, err)
	}
	if m := w.m.c.Policies; m != nil && s.IP.IsValid() {
		if err := m.Setup(ctx, w.trusted(p), s.IP.String()); err != nil {
			return w.sandboxFailed(ctx, p, err)
		}
	}
	for _, part := range w.m.c.Parts {
		if err := part.Setup(ctx, p, s.IP.String()); err != nil {
			return w.sandboxFailed(ctx, p, err)
		}
	}
	w.mu.Lock()
	w.held.sandbox = &s
	w.held.released, w.held.erased = false, false
	w.mu.Unlock()
	return nil
}

func (w *worker) sandboxFailed(ctx context.Context, p *corev1.Pod, err error) *Failure {
	if ctx.Err() == nil {
		w.m.event(p, "", corev1.EventTypeWarning, "FailedCreatePodSandBox", "Failed to create pod sandbox: "+err.Error())
	}
	return w.fail(string(SetupSandbox), "FailedCreatePodSandBox", err, time.Second)
}

func (w *worker) mountVolumes(ctx context.Context) *Failure {
	w.mu.Lock()
	w.held.stale = false
	ip := w.podIP()
	first := w.held.volumes == nil
	p := w.held.allocation.of(w.api.pod) // newest labels and annotations for downwardAPI volumes
	w.mu.Unlock()
	r, err := w.m.volumes.Setup(ctx, p, ip)
	if err != nil {
		if ctx.Err() == nil {
			w.m.event(p, "", corev1.EventTypeWarning, "FailedMount", err.Error())
		}
		w.mu.Lock()
		if !first {
			w.held.stale = true
		}
		w.mu.Unlock()
		if first && errors.Is(err, volume.ErrAttachLimit) {
			w.rejectFor("VolumeAttachmentLimitExceeded",
				"Node has reached its volume attachment limit, rejecting pod. "+err.Error())
		}
		return w.fail(string(MountVolumes), "FailedMount", err, 500*time.Millisecond)
	}
	w.mu.Lock()
	w.held.volumes = &r
	w.held.released, w.held.erased = false, false
	w.mu.Unlock()
	return nil
}

func (w *worker) startContainer(ctx context.Context, p *corev1.Pod, b *op) *Failure {
	m := w.m
	c, _, _ := containerOf(p, b.Target)
	if c == nil {
		return nil
	}
	event := m.starter(p, c.Name)
	warn := func(reason, message string) {
		if ctx.Err() == nil {
			event(corev1.EventTypeWarning, reason, message)
		}
	}
	w.mu.Lock()
	bld := build{
		pod:     p,
		c:       c,
		sandbox: *w.held.sandbox,
		volumes: w.held.volumes.Volumes,
		podIP:   w.podIP(),
		attempt: b.Attempt,
	}
	w.mu.Unlock()
	lap := m.metrics.laps()
	if f := w.mountImages(ctx, p, c, bld.sandbox.UserNS); f != nil {
		return f
	}
	img, err := m.images.Ensure(ctx, images.Request{
		Ref: c.Image, Policy: c.ImagePullPolicy, Namespace: p.Namespace, Event: event,
		Credentials: func() []keyring.Credential {
			return m.credentials(ctx, p, c.Image)
		},
	})
	if err != nil {
		return w.imageFailure(c.Name, err)
	}
	w.birth.pulling.Add(int64(lap(stepImage)))
	bld.image = img
	leave := m.gate.enter(ctx, stageStart)
	defer leave()
	joined, err := w.pidNamespace(ctx, p, c.Name, usersOf(bld.sandbox))
	if err != nil {
		return w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	defer joined.close()
	bld.pidNS = joined.path
	if err := w.limitPod(ctx); err != nil {
		warn("Failed", "Error: "+err.Error())
		return w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	spec, f := w.completeSpec(ctx, b, bld, warn)
	if f != nil {
		return f
	}
	settle := w.settleAmounts(p, c.Name, &spec)
	defer settle()
	id := spec.ID
	before, _ := m.containers.get(w.uid, id)
	again := joined.target || spec.Users != nil || before.Labels[labelBoot] != m.c.BootID
	if err := w.create(ctx, spec, again); err != nil {
		warn("Failed", "Error: "+err.Error())
		return w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	lap(stepCreate)
	event(corev1.EventTypeNormal, "Created", "Container created")
	err = m.c.Runtime.Start(ctx, id)
	leave()
	settle()
	m.refresh(ctx, id)
	if err != nil {
		warn("Failed", "Error: "+err.Error())
		if now, ok := m.containers.get(w.uid, id); ok && now.State == runtime.Exited {
			m.metrics.action(p, Start, true)
			return nil
		}
		return w.fail(c.Name, "RunContainerError", err, time.Second)
	}
	lap(stepRun)
	event(corev1.EventTypeNormal, "Started", "Container started")
	return w.postStart(ctx, p, b, c, id, bld.podIP, lap)
}

// create creates a container, or keeps the one that an earlier process created. With anew it replaces that one,
// because the namespaces it refers to are gone, its user IDs may have changed, or the machine has rebooted.
func (w *worker) create(ctx context.Context, spec runtime.Spec, anew bool) error {
	r := w.m.c.Runtime
	err := r.Create(ctx, spec)
	if errors.Is(err, runtime.ErrExists) && anew {
		if err = r.Remove(ctx, spec.ID); err == nil {
			err = r.Create(ctx, spec)
		}
	}
	if errors.Is(err, runtime.ErrExists) {
		return nil
	}
	return err
}

// postStart runs the postStart hook, and stops the container if the hook fails.
func (w *worker) postStart(ctx context.Context, p *corev1.Pod, b *op, c *corev1.Container, id, podIP string,
	lap func(string) time.Duration) *Failure {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return nil
	}
	event := w.m.starter(p, c.Name)
	if err := w.m.hook(ctx, p, c.Lifecycle.PostStart, c, id, podIP); err != nil && ctx.Err() == nil {
		event(corev1.EventTypeWarning, "FailedPostStartHook", "PostStartHook failed: "+err.Error())
		event(corev1.EventTypeNormal, "Killing", "FailedPostStartHook")
		b.mu.Lock()
		b.deadline = time.Now().Add(graceOf(p))
		b.mu.Unlock()
		return w.fail(c.Name, "PostStartHookError", w.stopContainer(ctx, p, b, id), time.Second)
	}
	lap(stepHook)
	return nil
}

// completeSpec writes the container's files, allocates devices, and returns the runtime's specification.
func (w *worker) completeSpec(ctx context.Context, o *op, b build,
	warn func(reason, message string)) (runtime.Spec, *Failure) {
	m, p, c := w.m, b.pod, b.c
	w.filesMu.Lock()
	err := m.writeFiles(p, b.podIP)
	w.filesMu.Unlock()
	if err == nil {
		err = m.c.Failpoints.At("pod.files")
	}
	if err != nil {
		return runtime.Spec{}, w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	if b.devices, err = m.devices(ctx, p, c); err != nil {
		warn("Failed", "Error: "+err.Error())
		return runtime.Spec{}, w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	if b.claimed, err = m.claimed(ctx, p, c); err != nil {
		warn("FailedPrepareDynamicResources", "Failed to prepare dynamic resources: "+err.Error())
		return runtime.Spec{}, w.fail(c.Name, "CreateContainerError", err, time.Second)
	}
	spec, err := m.spec(ctx, b)
	if err != nil {
		warn("Failed", "Error: "+err.Error())
		return runtime.Spec{}, &Failure{
			Reason:  "CreateContainerConfigError",
			Message: err.Error(),
			Until:   time.Now().Add(10 * time.Second),
		}
	}
	spec.Labels = map[string]string{
		labelPodName: p.Name, labelNamespace: p.Namespace, labelName: c.Name, labelAttempt: strconv.Itoa(o.Attempt),
		labelBackOff: o.BackOff.String(), labelHash: specHash(c), labelImage: c.Image, labelImageID: imageRef(b.image),
		labelGrace: strconv.Itoa(int(graceOf(p) / time.Second)), labelBoot: m.c.BootID,
	}
	if o.Round > 0 {
		spec.Labels[labelRound] = strconv.Itoa(o.Round)
	}
	if owner := w.m.owner(p); owner != "" {
		spec.Labels[labelOwner] = owner
	}
	if w.api.static {
		spec.Labels[labelSource], spec.Labels[labelFile] = static.FromFile, w.api.file
	}
	if c.TerminationMessagePath != "" {
		spec.Labels[labelMessage] = filepath.Join(m.volumes.PodDir(p.UID), "containers", c.Name, spec.ID[:12])
	}
	return spec, nil
}

func imageRef(i runtime.Image) string {
	if len(i.Digests) > 0 {
		return i.Digests[0]
	}
	return i.ID
}

func (w *worker) imageFailure(name string, err error) *Failure {
	var e *images.Error
	if !errors.As(err, &e) {
		return w.fail(name, "ErrImagePull", err, time.Second)
	}
	f := &Failure{Reason: e.Reason, Message: e.Message, Until: e.Until}
	switch {
	case e.Reason == "ErrImagePull":
		// Report it for a second; then the retry reports ImagePullBackOff.
		f.Until = time.Now().Add(time.Second)
	case f.Until.IsZero():
		return w.fail(name, e.Reason, err, 10*time.Second)
	}
	return f
}

func (w *worker) remove(ctx context.Context, p *corev1.Pod, id string) error {
	c, ok := w.m.containers.get(w.uid, id)
	if err := w.m.c.Runtime.Remove(ctx, id); err != nil {
		return err
	}
	w.m.refresh(ctx, id)
	if ok && c.Labels[labelMessage] != "" {
		_ = os.Remove(c.Labels[labelMessage])
	}
	if ok && c.LogPath != "" {
		removeLogs(c.LogPath)
	}
	return nil
}

func removeLogs(path string) {
	rotated, _ := filepath.Glob(path + ".*")
	for _, f := range append(rotated, path) {
		_ = os.Remove(f)
	}
}

// release releases shim, network and volumes. With forget it also removes containers and logs.
func (w *worker) release(ctx context.Context, p *corev1.Pod, forget bool) *Failure {
	var errs, kept []error
	owner := w.keptFor(p)
	w.keepFiles(p, owner)
	if forget {
		kept = append(kept, w.keepLogs(p, owner))
		for _, c := range w.m.containers.of(w.uid) {
			errs = append(errs, w.m.c.Runtime.Remove(ctx, c.ID))
			w.m.refresh(ctx, c.ID)
		}
		errs = append(errs, w.m.c.Runtime.RemovePod(ctx, string(w.uid), w.m.cgroup(w.uid)))
	} else {
		errs = append(errs, w.m.c.Runtime.EndPod(ctx, string(w.uid)))
	}
	for _, part := range w.m.c.Parts {
		part.Release(w.uid)
	}
	if errors.Join(errs...) == nil { // a container that still exists needs the address and the user IDs
		errs = append(errs, w.m.c.Network.Teardown(ctx, string(w.uid)))
		if m := w.m.c.Policies; m != nil {
			m.Release(w.trusted(p))
		}
	}
	errs = append(errs, kept...)
	errs = append(errs, w.m.volumes.Teardown(ctx, w.uid, forget))
	errs = append(errs, w.m.c.Failpoints.At("pod.volumes-released"))
	if w.m.c.Devices != nil {
		errs = append(errs, w.m.c.Devices.Forget(w.uid))
	}
	if w.m.c.Claims != nil && errors.Join(errs...) == nil {
		errs = append(errs, w.m.c.Claims.Forget(ctx, w.uid))
	}
	if forget && p.Name != "" {
		errs = append(errs, os.RemoveAll(filepath.Join(w.m.c.LogDir, logDirName(p))))
	}
	errs = append(errs, w.m.c.Failpoints.At("pod.released"))
	if err := errors.Join(errs...); err != nil {
		if ctx.Err() == nil {
			w.m.log.Warn("could not release pod resources, retrying", "pod", p.Namespace+"/"+p.Name, "uid", w.uid, "error", err)
		}
		return w.fail(string(Release), "ReleaseError", err, time.Second)
	}
	w.mu.Lock()
	w.held.released, w.held.erased = true, w.held.erased || forget
	w.held.sandbox, w.held.volumes = nil, nil
	w.mu.Unlock()
	return nil
}

// delete writes the pod's final status and deletes it from the API.
func (w *worker) delete(ctx context.Context, p *corev1.Pod) error {
	if _, err := w.postOnce(ctx); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	err := w.m.c.Client.Delete(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}},
		ctrl.GracePeriodSeconds(0), ctrl.Preconditions{UID: &p.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		w.mu.Lock()
		w.api.gone = true // deleted, or replaced by a pod of the same name
		w.mu.Unlock()
		return nil
	}
	if err == nil {
		w.mu.Lock()
		w.api.deleted = true
		w.mu.Unlock()
	}
	return err
}
