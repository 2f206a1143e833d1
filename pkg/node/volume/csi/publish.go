package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/coracle-dev/coracle/pkg/node/volume"
)

func (m *Manager) nodePublish(ctx context.Context, c *connection, p volume.Pod, r *request, object *storagev1.CSIDriver,
	s state) error {
	own, _ := m.below(s.Dir)
	if err := os.MkdirAll(own, 0o750); err != nil {
		return err
	}
	secrets, err := m.secrets(ctx, "NodePublishSecretRef", r.publishSecret)
	if err != nil {
		return err
	}
	attributes := maps.Clone(r.attributes)
	add := func(to *map[string]string, key, value string) {
		if *to == nil {
			*to = map[string]string{}
		}
		(*to)[key] = value
	}
	if object != nil && object.Spec.PodInfoOnMount != nil && *object.Spec.PodInfoOnMount {
		account := p.Spec.ServiceAccountName
		for key, value := range map[string]string{
			"csi.storage.k8s.io/pod.name": p.Name, "csi.storage.k8s.io/pod.namespace": p.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(p.UID),
			"csi.storage.k8s.io/serviceAccount.name": account,
			"csi.storage.k8s.io/ephemeral":           strconv.FormatBool(r.persistent == nil),
		} {
			add(&attributes, key, value)
		}
	}
	if object != nil && len(object.Spec.TokenRequests) > 0 {
		tokens, err := tokensFor(ctx, p, object.Spec.TokenRequests)
		if err != nil {
			return err
		}
		to := &attributes
		if object.Spec.ServiceAccountTokenInSecrets != nil && *object.Spec.ServiceAccountTokenInSecrets {
			to = &secrets
		}
		add(to, "csi.storage.k8s.io/serviceAccount.tokens", tokens)
	}
	request := &spec.NodePublishVolumeRequest{
		VolumeId: r.handle, PublishContext: r.publishContext, StagingTargetPath: r.staging, TargetPath: s.Target,
		VolumeCapability: capability(c, r), Readonly: r.readOnly, Secrets: secrets, VolumeContext: attributes,
	}
	if _, err := c.NodePublishVolume(ctx, request); err != nil {
		return err
	}
	return nil
}

// tokensFor returns the pod's tokens in the kubelet's format for drivers: a JSON object by audience.
func tokensFor(ctx context.Context, p volume.Pod, requests []storagev1.TokenRequest) (string, error) {
	all := map[string]authenticationv1.TokenRequestStatus{}
	for _, r := range requests {
		status, err := p.Token(ctx, r.Audience, r.ExpirationSeconds)
		if err != nil {
			return "", err
		}
		all[r.Audience] = status
	}
	text, err := json.Marshal(all)
	return string(text), err
}

func capability(c *connection, r *request) *spec.VolumeCapability {
	access := &spec.VolumeCapability_AccessMode{
		Mode: accessMode(r.accessMode, c.can[spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]),
	}
	if r.block {
		return &spec.VolumeCapability{
			AccessMode: access, AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
		}
	}
	mount := &spec.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.mountOptions}
	if r.fsGroup != nil && c.can[spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP] {
		mount.VolumeMountGroup = strconv.FormatInt(*r.fsGroup, 10)
	}
	return &spec.VolumeCapability{AccessMode: access, AccessType: &spec.VolumeCapability_Mount{Mount: mount}}
}

// accessMode converts like the kubelet. tells: the driver distinguishes one pod from several pods on a node.
func accessMode(mode corev1.PersistentVolumeAccessMode, tells bool) spec.VolumeCapability_AccessMode_Mode {
	switch mode {
	case corev1.ReadOnlyMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case corev1.ReadWriteMany:
		return spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case corev1.ReadWriteOnce:
		if tells {
			return spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		}
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	case corev1.ReadWriteOncePod:
		if tells {
			return spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		}
		return spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	}
	return spec.VolumeCapability_AccessMode_UNKNOWN
}

func notAttached(name string) error {
	return fmt.Errorf("volume is not attached to this node yet: VolumeAttachment %s", name)
}
