"""What an MTP head is worth: how often its drafts are accepted, and what that saves."""
