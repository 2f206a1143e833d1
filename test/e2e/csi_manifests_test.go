package e2e

// sidecars is a driver with upstream's sidecars in one pod, like the public hostpath driver's deployment. DRIVER
// stands for the driver's containers and DATA for its data. KUBELET is the directory shared with the agent. The
// agent also gives it its usual name, unless another cluster of the machine has that.
const sidecars = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: d.example.com}
spec: {podInfoOnMount: true, fsGroupPolicy: File, storageCapacity: true, volumeLifecycleModes: [Persistent, Ephemeral]}
---
apiVersion: v1
kind: Namespace
metadata: {name: csi}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: driver, namespace: csi}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: csi-driver}
rules:
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update, patch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status, persistentvolumes/status], verbs: [patch, update]}
- {apiGroups: [""], resources: [events], verbs: [get, list, watch, create, update, patch]}
- {apiGroups: [""], resources: [nodes, pods], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [storageclasses, csinodes, volumeattributesclasses], verbs: [get, list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [get, list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots, volumesnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotclasses], verbs: [get, list, watch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents], verbs: [get, list, watch, update, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents/status], verbs: [update, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: csi-driver}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: csi-driver}
subjects: [{kind: ServiceAccount, name: driver, namespace: csi}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: csi-driver, namespace: csi}
rules:
- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, list, delete, update, create, patch]}
- {apiGroups: [storage.k8s.io], resources: [csistoragecapacities], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
- {apiGroups: [apps], resources: [replicasets, statefulsets], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: csi-driver, namespace: csi}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: csi-driver}
subjects: [{kind: ServiceAccount, name: driver, namespace: csi}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: driver, namespace: csi}
spec:
  serviceName: driver
  selector: {matchLabels: {app: driver}}
  template:
    metadata: {labels: {app: driver}}
    spec:
      serviceAccountName: driver
      containers:
DRIVER      - name: attacher
        image: registry.k8s.io/sig-storage/csi-attacher:latest
        imagePullPolicy: Never
        args: [--v=5, --csi-address=/csi/csi.sock, --leader-election]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: provisioner
        image: registry.k8s.io/sig-storage/csi-provisioner:latest
        imagePullPolicy: Never
        args: [--v=5, --csi-address=/csi/csi.sock, --leader-election, --feature-gates=Topology=true, --enable-capacity, --capacity-ownerref-level=1, --extra-create-metadata]
        env: [{name: NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}, {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: resizer
        image: registry.k8s.io/sig-storage/csi-resizer:latest
        imagePullPolicy: Never
        args: [--v=5, --csi-address=/csi/csi.sock, --leader-election]
        volumeMounts: [{name: socket, mountPath: /csi}]
      - name: snapshotter
        image: registry.k8s.io/sig-storage/csi-snapshotter:latest
        imagePullPolicy: Never
        args: [--v=5, --csi-address=/csi/csi.sock, --leader-election, --feature-gates=CSIVolumeGroupSnapshot=true]
        volumeMounts: [{name: socket, mountPath: /csi}]
      volumes:
      - {name: socket, hostPath: {path: KUBELET/plugins/d.example.com, type: DirectoryOrCreate}}
      - {name: pods, hostPath: {path: KUBELET/pods, type: DirectoryOrCreate}}
      - {name: plugins, hostPath: {path: KUBELET/plugins, type: Directory}}
      - {name: registration, hostPath: {path: KUBELET/plugins_registry, type: Directory}}
      - {name: data, hostPath: {path: DATA, type: DirectoryOrCreate}}
      - {name: dev, hostPath: {path: /dev, type: Directory}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: now}
provisioner: d.example.com
parameters: {kind: fast}
allowVolumeExpansion: true
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: later}
provisioner: d.example.com
parameters: {kind: fast}
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: gold}
driverName: d.example.com
parameters: {iops: "1000"}
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: snap}
driver: d.example.com
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: groups, annotations: {groupsnapshot.storage.kubernetes.io/is-default-class: "true"}}
driver: d.example.com
deletionPolicy: Delete
`

// hostPathDriver is the public driver, with the helpers that register it and check its liveness.
const hostPathDriver = `      - name: driver
        image: registry.k8s.io/sig-storage/hostpathplugin:latest
        imagePullPolicy: Never
        args: [--drivername=d.example.com, --endpoint=unix:///csi/csi.sock, --nodeid=$(NODE), --v=5, --capacity=fast=10Gi, --enable-attach, --enable-controller-modify-volume,
          --check-volume-lifecycle]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        ports: [{name: healthz, containerPort: 9898}]
        livenessProbe: {httpGet: {path: /healthz, port: healthz}, failureThreshold: 5, initialDelaySeconds: 10, timeoutSeconds: 3, periodSeconds: 2}
        volumeMounts:
        - {name: socket, mountPath: /csi}
        - {name: pods, mountPath: KUBELET/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: KUBELET/plugins, mountPropagation: Bidirectional}
        - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: /var/lib/kubelet/plugins, mountPropagation: Bidirectional}
        - {name: data, mountPath: /csi-data-dir}
        - {name: dev, mountPath: /dev}
      - name: registrar
        image: registry.k8s.io/sig-storage/csi-node-driver-registrar:latest
        imagePullPolicy: Never
        args: [--v=5, --csi-address=/csi/csi.sock, --kubelet-registration-path=KUBELET/plugins/d.example.com/csi.sock, "--http-endpoint=:9809"]
        env: [{name: KUBE_NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        ports: [{name: healthz, containerPort: 9809}]
        livenessProbe: {httpGet: {path: /healthz, port: healthz}, initialDelaySeconds: 30, timeoutSeconds: 15}
        volumeMounts: [{name: socket, mountPath: /csi}, {name: registration, mountPath: /registration}]
      - name: liveness
        image: registry.k8s.io/sig-storage/livenessprobe:latest
        imagePullPolicy: Never
        args: [--csi-address=/csi/csi.sock, --health-port=9898]
        volumeMounts: [{name: socket, mountPath: /csi}]
`

// ourDriver is the tests' driver, which registers itself.
const ourDriver = `      - name: driver
        image: docker.io/coracle/csidriver:latest
        imagePullPolicy: Never
        args: [-name=d.example.com, -kubelet=KUBELET, -node=$(NODE), -data=/csi-data-dir]
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: pods, mountPath: KUBELET/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: KUBELET/plugins, mountPropagation: Bidirectional}
        - {name: pods, mountPath: /var/lib/kubelet/pods, mountPropagation: Bidirectional}
        - {name: plugins, mountPath: /var/lib/kubelet/plugins, mountPropagation: Bidirectional}
        - {name: registration, mountPath: KUBELET/plugins_registry}
        - {name: data, mountPath: /csi-data-dir}
        - {name: dev, mountPath: /dev}
`

const sidecarsPods = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: now, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: late}
spec: {accessModes: [ReadWriteOncePod], storageClassName: later, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: raw}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: now, resources: {requests: {storage: 16Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  securityContext: {fsGroup: 4242}
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "trap exit TERM; while true; do sleep 1 & wait; done"]
    volumeMounts: [{name: data, mountPath: /data}, {name: late, mountPath: /late}, {name: inline, mountPath: /inline}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: late, persistentVolumeClaim: {claimName: late}}
  - {name: inline, csi: {driver: d.example.com, volumeAttributes: {size: 1Mi, kind: fast}}}
---
apiVersion: v1
kind: Pod
metadata: {name: block}
spec:
  containers: [{name: c, image: "busybox:1.36", command: [sh, -c, "trap exit TERM; while true; do sleep 1 & wait; done"], volumeDevices: [{name: raw, devicePath: /dev/raw}]}]
  volumes: [{name: raw, persistentVolumeClaim: {claimName: raw}}]
`

const sidecarsRefused = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: large}
spec: {accessModes: [ReadWriteOnce], storageClassName: later, resources: {requests: {storage: 100Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: second}
spec:
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"], volumeMounts: [{name: late, mountPath: /late}]}]
  volumes: [{name: late, persistentVolumeClaim: {claimName: late}}]
---
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"], volumeMounts: [{name: large, mountPath: /large}]}]
  volumes: [{name: large, persistentVolumeClaim: {claimName: large}}]
`

const sidecarsCopies = `
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: first}
spec: {volumeSnapshotClassName: snap, source: {persistentVolumeClaimName: data}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: restored}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: now
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: first}
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: clone}
spec:
  accessModes: [ReadWriteOnce]
  volumeMode: Block
  storageClassName: now
  dataSource: {kind: PersistentVolumeClaim, name: raw}
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: reader}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, "100000"]
    volumeMounts: [{name: restored, mountPath: /restored}]
    volumeDevices: [{name: clone, devicePath: /dev/clone}]
  volumes:
  - {name: restored, persistentVolumeClaim: {claimName: restored}}
  - {name: clone, persistentVolumeClaim: {claimName: clone}}
`

const sidecarsGroup = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: both}
spec: {source: {selector: {matchLabels: {group: both}}}}
`

// sidecarsRegained is a claim from SNAPSHOT, a snapshot of the group.
const sidecarsRegained = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: regained}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: now
  dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: SNAPSHOT}
  resources: {requests: {storage: 32Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: regained}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "busybox:1.36", command: [sleep, "100000"], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: regained}}]
`
