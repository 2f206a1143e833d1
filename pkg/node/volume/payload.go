package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func mode(item, def *int32) fs.FileMode {
	switch {
	case item != nil:
		return fs.FileMode(*item) & 0o777
	case def != nil:
		return fs.FileMode(*def) & 0o777
	}
	return 0o644
}

// sources reads the contents of volumes made of API objects.
type sources struct {
	objects      *Objects
	tokens       *tokens
	certificates *podCertificates
	hostIP       string
	allocatable  func() corev1.ResourceList
}

// collect returns the files of a volume, by path, and when to call it again; zero means never.
type collect func(context.Context, Pod) (map[string]File, time.Time, error)

func (s *sources) configMapFiles(ctx context.Context, p Pod) (map[string]File, time.Time, error) {
	files, v := map[string]File{}, p.Source.ConfigMap
	return files, time.Time{}, s.configMap(ctx, p.Pod, files, v.Name, v.Items, v.DefaultMode, v.Optional)
}

func (s *sources) secretFiles(ctx context.Context, p Pod) (map[string]File, time.Time, error) {
	files, v := map[string]File{}, p.Source.Secret
	return files, time.Time{}, s.secret(ctx, p.Pod, files, v.SecretName, v.Items, v.DefaultMode, v.Optional)
}

func (s *sources) downwardFiles(_ context.Context, p Pod) (map[string]File, time.Time, error) {
	files, v := map[string]File{}, p.Source.DownwardAPI
	return files, time.Time{}, s.downward(p, files, v.Items, v.DefaultMode)
}

func (s *sources) projectedFiles(ctx context.Context, p Pod) (map[string]File, time.Time, error) {
	files, def := map[string]File{}, p.Source.Projected.DefaultMode
	var refresh time.Time
	var errs []error
	again := func(t time.Time) {
		if !t.IsZero() && (refresh.IsZero() || t.Before(refresh)) {
			refresh = t
		}
	}
	spent := int64(0)
	for i, v := range p.Source.Projected.Sources {
		part := map[string]File{}
		switch {
		case v.ConfigMap != nil:
			errs = append(errs, s.configMap(ctx, p.Pod, part, v.ConfigMap.Name, v.ConfigMap.Items, def, v.ConfigMap.Optional))
		case v.Secret != nil:
			errs = append(errs, s.secret(ctx, p.Pod, part, v.Secret.Name, v.Secret.Items, def, v.Secret.Optional))
		case v.DownwardAPI != nil:
			errs = append(errs, s.downward(p, part, v.DownwardAPI.Items, def))
		case v.ServiceAccountToken != nil:
			t, err := s.tokens.get(ctx, p.Pod, v.ServiceAccountToken)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			part[v.ServiceAccountToken.Path] = ownFile(p.Pod, []byte(t.text), def)
			again(t.refresh)
		case v.ClusterTrustBundle != nil:
			anchors, err := s.objects.trustAnchors(ctx, v.ClusterTrustBundle)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			part[v.ClusterTrustBundle.Path] = ownFile(p.Pod, anchors, def)
		case v.PodCertificate != nil:
			c, t, err := s.certificates.get(ctx, p.Pod, p.Volume, i, v.PodCertificate)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			c.write(part, p.Pod, v.PodCertificate, def)
			again(t)
		default:
			errs = append(errs,
				errors.New("this projected source is not supported on this node; use configMap, secret, downwardAPI, "+
					"serviceAccountToken, clusterTrustBundle or podCertificate"))
		}
		// Checked with each source: an object that thousands of sources name is read, and kept, once for each.
		if spent += memoryOf(part, os.Getpagesize()); spent > *p.memory {
			return nil, refresh, errObjects
		}
		maps.Copy(files, part)
	}
	return files, refresh, errors.Join(errs...)
}

// ownFile returns a file for only the pod's single user or its fsGroup; without either, in the default mode.
func ownFile(p *corev1.Pod, data []byte, def *int32) File {
	f := File{Data: data, Mode: mode(nil, def), UID: soleUser(p)}
	if f.UID != nil || fsGroup(p) != nil { // WriteAtomic adds the group's permissions
		f.Mode = 0o600
	}
	return f
}

// soleUser returns the user that all containers run as, nil if they differ or one has no runAsUser.
func soleUser(p *corev1.Pod) *int64 {
	var ofPod *int64
	if p.Spec.SecurityContext != nil {
		ofPod = p.Spec.SecurityContext.RunAsUser
	}
	contexts := make([]*corev1.SecurityContext, 0, len(p.Spec.Containers))
	for i := range p.Spec.InitContainers {
		contexts = append(contexts, p.Spec.InitContainers[i].SecurityContext)
	}
	for i := range p.Spec.Containers {
		contexts = append(contexts, p.Spec.Containers[i].SecurityContext)
	}
	for i := range p.Spec.EphemeralContainers {
		contexts = append(contexts, p.Spec.EphemeralContainers[i].SecurityContext)
	}
	var sole *int64
	for _, sc := range contexts {
		user := ofPod
		if sc != nil && sc.RunAsUser != nil {
			user = sc.RunAsUser
		}
		if user == nil || sole != nil && *user != *sole {
			return nil
		}
		sole = user
	}
	return sole
}

func add(files map[string]File, data map[string][]byte, items []corev1.KeyToPath, def *int32, optional bool,
	what string) error {
	if len(items) == 0 {
		for k, v := range data {
			files[k] = File{Data: v, Mode: mode(nil, def)}
		}
		return nil
	}
	for _, i := range items {
		v, ok := data[i.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("%s references non-existent key: %s", what, i.Key)
		}
		files[path.Clean(i.Path)] = File{Data: v, Mode: mode(i.Mode, def)}
	}
	return nil
}

func (s *sources) configMap(ctx context.Context, p *corev1.Pod, files map[string]File, name string,
	items []corev1.KeyToPath, def *int32, opt *bool) error {
	optional := opt != nil && *opt
	cm, err := s.objects.ConfigMap(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	maps.Copy(data, cm.BinaryData)
	return add(files, data, items, def, optional, "configmap")
}

func (s *sources) secret(ctx context.Context, p *corev1.Pod, files map[string]File, name string,
	items []corev1.KeyToPath, def *int32, opt *bool) error {
	optional := opt != nil && *opt
	object, err := s.objects.Secret(ctx, p.Namespace, name)
	if apierrors.IsNotFound(err) && optional {
		return nil
	}
	if err != nil {
		return err
	}
	return add(files, object.Data, items, def, optional, "secret")
}

func (s *sources) downward(p Pod, files map[string]File, items []corev1.DownwardAPIVolumeFile, def *int32) error {
	for _, i := range items {
		var text string
		var err error
		switch {
		case i.FieldRef != nil:
			text, err = Field(p.Pod, i.FieldRef.FieldPath, p.IP, s.hostIP)
		case i.ResourceFieldRef != nil:
			text, err = Resource(p.Pod, i.ResourceFieldRef, "", s.allocatable())
		}
		if err != nil {
			return err
		}
		files[path.Clean(i.Path)] = File{Data: []byte(text), Mode: mode(i.Mode, def)}
	}
	return nil
}
