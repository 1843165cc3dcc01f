-- Health of the kinds of group pelotech.ot, for Argo CD. docs/waiting.md says how to install it.
local health = {status = "Progressing", message = ""}

-- Only the programs write the other kinds: an object of them is as it should be.
local summarized = {
  FleetDiskImage = true, ImagePrune = true, MemberCluster = true, PruneReport = true,
  VirtualMachine = true, VMDiskImage = true,
}
if not summarized[obj.kind] then
  health.status = "Healthy"
  return health
end

if obj.metadata.deletionTimestamp ~= nil then
  health.message = "is being deleted"
  return health
end
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  health.message = "waits for the controller to observe the spec"
  return health
end

local condition = {}
for _, c in ipairs(status.conditions or {}) do
  condition[c.type] = c
end
local function holds(name)
  return condition[name] ~= nil and condition[name].status == "True"
end

if holds("Stalled") then
  health.status = "Degraded"
  health.message = condition.Stalled.message
elseif status.phase == "Waiting" and (status.reason == "AwaitingApproval" or status.reason == "Paused") then
  health.status = "Suspended"
  health.message = status.message or ""
elseif holds("Ready") then
  health.status = "Healthy"
  health.message = condition.Ready.message
elseif condition.Ready ~= nil then
  health.message = condition.Ready.message
end
return health
